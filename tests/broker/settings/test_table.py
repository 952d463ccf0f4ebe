"""The settings table: sources of values, refused values, and that code reads every setting."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient, ConfigResource

from onceflow.broker.config import BrokerConfig, Endpoint, ListenerLimits
from onceflow.broker.settings import page as settings_page
from onceflow.broker.settings.authorization import ACL_AUTHORIZER, STANDARD_AUTHORIZER
from onceflow.broker.settings.fixed import FIXED, REFUSED, WITHOUT_EFFECT, reason_of
from onceflow.broker.settings.kinds import SettingRefused
from onceflow.broker.settings.setting import DEFAULTS
from onceflow.broker.settings.sources import Source, from_environment, from_file, resolve, variable_of
from onceflow.broker.settings.table import GROUPS, SETTINGS, described
from onceflow.cli import onceflow
from onceflow.properties import parse_properties
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests.broker.raw_client import connected

SOURCE = Path(__file__).parents[3] / "src" / "onceflow"
DATA = {"log.dirs": "/data"}

KAFKAS_OWN_FILE = """\
# config/server.properties of Apache Kafka 4.1, as shipped
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def configured(**given: str) -> BrokerConfig:
    """Return the config of settings named with underscores for dots."""
    return resolve(Source(DATA | {name.replace("_", "."): text for name, text in given.items()})).config


def test_options_override_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.dirs=/file\nnum.partitions=2\nlog.segment.bytes=2000000\nlog.retention.ms=1\n")
    environment = from_environment(
        {"ONCEFLOW_BROKER_NUM_PARTITIONS": "3", "ONCEFLOW_BROKER_LOG_SEGMENT_BYTES": "3000000"}
    )
    config = resolve(from_file(file), environment, Source({"num.partitions": "4", "log.retention.hours": "1"})).config
    assert (config.data, config.log.segment_bytes, config.partition_count_default) == (Path("/file"), 3000000, 4)
    assert config.log.retention_ms == 3_600_000, "an option in hours beats a file's milliseconds"


def test_finer_unit_takes_precedence() -> None:
    assert configured(log_retention_ms="5", log_retention_minutes="2", log_retention_hours="1").log.retention_ms == 5
    assert configured(log_retention_hours="1", log_retention_minutes="2").log.retention_ms == 120_000
    assert configured(log_retention_hours="-1").log.retention_ms == -1
    assert configured(log_roll_hours="2").log.segment_ms == 7_200_000


def test_authorizer_depends_on_zookeeper() -> None:
    with pytest.raises(SettingRefused, match=f"must be {re.escape(ACL_AUTHORIZER)} with zookeeper.connect"):
        configured(authorizer_class_name=STANDARD_AUTHORIZER, zookeeper_connect="127.0.0.1:2181")
    assert configured(authorizer_class_name=ACL_AUTHORIZER, zookeeper_connect="127.0.0.1:2181").authorizer_class


def test_values_round_trip_as_text() -> None:
    for setting in SETTINGS.values():
        text = setting.value(DEFAULTS)
        if text is not None:
            assert resolve(Source(DATA | {setting.name: text})).config is not None, setting.name
    config = configured(log_cleanup_policy="compact,delete", listeners="PLAINTEXT://[::1]:7", log_dirs="x")
    assert (config.log.cleanup_compact, config.log.cleanup_delete) == (True, True)
    assert config.listeners == (Endpoint("::1", 7),)
    assert {entry.name: entry.value for entry in described(config)}["listeners"] == "PLAINTEXT://[::1]:7"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "log.retention.hour",
            "1",
            "hour is not a setting of this broker; did you mean log.retention.hours?",
        ),
        ("xyzzy", "1", "xyzzy is not a setting of this broker; docs/operating.md lists all settings"),
        ("num.partitions", "0", "num.partitions=0 is not a whole number from 1 to 1000"),
        ("num.partitions", "two", "num.partitions=two is not a whole number from 1 to 1000"),
        ("log.retention.ms", "-2", "log.retention.ms=-2 is not a whole number from 0, or -1 for none"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "=1.5 is not a number from 0 to 1"),
        ("log.cleanup.policy", "", "log.cleanup.policy= is not delete, compact or delete,compact"),
        ("delete.topic.enable", "yes", "delete.topic.enable=yes is not true or false"),
        ("log.message.timestamp.type", "Now", "is not CreateTime or LogAppendTime"),
        ("listeners", "SASL_SSL://h", "is not HOST:PORT or NAME://HOST:PORT"),
        ("listeners", "CONTROLLER://h:1", "is not HOST:PORT or NAME://HOST:PORT"),
        ("listeners", "h:1,i:2", "has 2 listeners named PLAINTEXT; each needs a name of its own"),
        ("listeners", "INSIDE://h:1", "listeners: INSIDE has no security protocol"),
        ("advertised.listeners", ":9092", "is not HOST:PORT"),
        ("inter.broker.listener.name", "INSIDE", "=INSIDE is not one of the listeners PLAINTEXT"),
        ("security.inter.broker.protocol", "SSL", "=SSL needs a listener of that name; the listeners are PLAINTEXT"),
        ("advertised.listeners", "INSIDE://h:9092", "INSIDE is not one of the listeners PLAINTEXT"),
        ("listener.security.protocol.map", "A:PLAIN", "=A:PLAIN is not NAME:PROTOCOL"),
        ("listener.security.protocol.map", "A:SSL,a:SSL", "a name occurs once"),
        ("log.retention.policy", "not a path", "is not MODULE:NAME"),
        ("log.dirs", "/a,/b", "is not one directory"),
        ("offsets.topic.replication.factor", "3", "=3: must be 1, since there is one broker"),
        ("remote.log.storage.system.enable", "true", "=true: must be false, since all records are on"),
        ("message.max.bytes", "99999999999", "is not a whole number from 0 to 2147483647"),
        ("ssl.keystore.password", "k", "ssl.keystore.password is not supported: keys and certificates are in PEM"),
        ("ssl.keystore.type", "JKS", "ssl.keystore.type=JKS: must be PEM, since OpenSSL reads"),
        ("ssl.keystore.key", "secret", "ssl.keystore.key is not a private key in PEM"),
        ("ssl.enabled.protocols", "TLSv1", "is not one or more of TLSv1.2, TLSv1.3"),
        ("ssl.client.auth", "maybe", "is not none or requested or required"),
        ("ssl.principal.mapping.rules", "RULE:x", "has an invalid rule: RULE:x"),
        ("listener.name.inside.ssl.client.auth", "required", "INSIDE is not one of the listeners PLAINTEXT"),
        (
            "listener.name.plaintext.num.partitions",
            "1",
            "own settings are those of TLS and SASL, and limits",
        ),
        ("max.connections.per.ip", "0", "=0 needs max.connections.per.ip.overrides"),
        ("max.connections.per.ip.overrides", "host:1", "=host:1 is not IP addresses with a number each"),
        ("max.connections.per.ip.overrides", "10.0.0.7", "is not IP addresses with a number each"),
        ("max.connection.creation.rate", "0", "is not a whole number from 1 to 2147483647"),
        ("sasl.enabled.mechanisms", "GSSAPI", "is not one or more of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        (
            "sasl.oauthbearer.jwks.endpoint.url",
            "https://h/k",
            "=https://h/k is not the URL of a file, such as file:///",
        ),
        ("sasl.oauthbearer.jwks.endpoint.url", "file://h/k", "is not the URL of a file"),
        ("sasl.oauthbearer.clock.skew.seconds", "-1", "is not a whole number from 0"),
        ("sasl.oauthbearer.validator", "x", "is not MODULE:NAME"),
        ("plain.sasl.jaas.config", "x", "plain.sasl.jaas.config is not in the form org.apache.kafka"),
        ("plain.sasl.jaas.config", 'PlainLoginModule required users="x";', "has unknown options: users"),
        ("super.users", "User:a", "super.users has no effect without authorizer.class.name=org.apache.kafka."),
        ("super.users", "ada", "super.users=ada is not principals such as User:admin, separated by semicolons"),
        ("allow.everyone.if.no.acl.found", "true", "has no effect without authorizer.class.name=org.apache.kafka."),
        ("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer", "must be org.apache.kafka.metadata."),
        ("authorizer.class.name", "org.example.Authorizer", "is not org.apache.kafka.metadata."),
    ],
)
def test_invalid_settings_are_refused_with_remedy(name: str, text: str, message: str) -> None:
    with pytest.raises(SettingRefused, match=re.escape(message)):
        resolve(Source(DATA | {name: text}))


def test_every_kafka_setting_is_in_one_table() -> None:
    names = (Path(__file__).parent / "kafka_settings.txt").read_text().split()
    assert len(names) > 300
    for name in names:
        tables = [name in SETTINGS, name in FIXED, reason_of(name, WITHOUT_EFFECT), reason_of(name, REFUSED)]
        assert sum(map(bool, tables)) == 1, name


def test_booleans_are_read_as_in_kafka() -> None:
    assert configured(auto_create_topics_enable="False").auto_create_topics is False
    assert configured(log_cleaner_enable=" TRUE ").cleaner_enabled is True


def test_error_in_file_names_it_once(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.dirs=/data\nlog.retention.hrs=1\n")
    with pytest.raises(SettingRefused) as refused:
        resolve(from_file(file))
    wanted = f"{file}: log.retention.hrs is not a setting of this broker; did you mean log.retention.hours?"
    assert str(refused.value) == wanted


def test_unknown_environment_variable_is_refused() -> None:
    with pytest.raises(SettingRefused, match="did you mean ONCEFLOW_BROKER_LOG_RETENTION_HOURS"):
        from_environment({"ONCEFLOW_BROKER_LOG_RETENTION_HOUR": "1"})
    with pytest.raises(SettingRefused, match=r"log\.dirs is set twice in the environment"):
        from_environment({"ONCEFLOW_BROKER_DATA": "a", "ONCEFLOW_BROKER_LOG_DIRS": "b"})
    with pytest.raises(SettingRefused, match="ONCEFLOW_BROKER_SSL_KEYSTORE_PASSWORD is not supported"):
        resolve(from_environment({"ONCEFLOW_BROKER_SSL_KEYSTORE_PASSWORD": "x"}))
    assert resolve(Source(DATA), from_environment({"ONCEFLOW_BROKER_NUM_IO_THREADS": "8"})).notes
    assert len({variable_of(name) for name in SETTINGS}) == len(SETTINGS)


def test_listeners_on_one_port_are_refused() -> None:
    listeners = {"listeners": "h:1,B://h:1", "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT"}
    with pytest.raises(SettingRefused, match="2 listeners on port 1 of h; each needs its own port"):
        resolve(Source(DATA | listeners))


def test_other_brokers_may_use_any_listener() -> None:
    listeners = {"listeners": "SASL_SSL://h:1,SSL://h:2"}
    resolved = resolve(Source(DATA | listeners | {"inter.broker.listener.name": "SASL_SSL"}))
    assert resolved.without_effect == ["inter.broker.listener.name"]
    protocol = {"security.inter.broker.protocol": "SSL"}
    assert resolve(Source(DATA | listeners | protocol)).without_effect == ["security.inter.broker.protocol"]
    with pytest.raises(SettingRefused, match="exclude each other"):
        resolve(Source(DATA | listeners | protocol), Source({"inter.broker.listener.name": "SSL"}))


SECRET = "-----BEGIN PRIVATE KEY----- MIISECRET -----END PRIVATE KEY-----"


def test_a_listener_has_its_own_settings() -> None:
    given = {
        "listeners": "INSIDE://h:1,OUT_SIDE://h:2,SSL://h:3",
        "listener.security.protocol.map": "INSIDE:SSL,OUT_SIDE:SSL,SSL:SSL",
        "ssl.client.auth": "requested",
        "listener.name.inside.ssl.client.auth": "required",
        "listener.name.inside.ssl.keystore.type": "PEM",
    }
    environment = from_environment({"ONCEFLOW_BROKER_LISTENER_NAME_OUT__SIDE_SSL_KEYSTORE_KEY": SECRET})
    config = resolve(Source(DATA | given), environment).config
    auth = {endpoint.listener: config.security_of(endpoint.listener).client_auth for endpoint in config.listeners}
    assert auth == {"INSIDE": "required", "OUT_SIDE": "requested", "SSL": "requested"}
    assert config.security_of("OUT_SIDE").key == SECRET
    assert "MIISECRET" not in repr(config)


def test_a_listener_has_its_own_limits() -> None:
    given = {
        "listeners": "INSIDE://h:1,OUTSIDE://h:2",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "max.connections": "7",
        "max.connections.per.ip": "0",
        "max.connections.per.ip.overrides": "10.0.0.7:3, ::1:5",
        "listener.name.outside.max.connection.creation.rate": "2",
    }
    config = resolve(Source(DATA | given)).config
    assert config.listener_limits == {"OUTSIDE": ListenerLimits(connection_rate_max=2)}
    assert config.connections_per_address_overrides == {"10.0.0.7": 3, "0:0:0:0:0:0:0:1": 5}
    assert SETTINGS["max.connections.per.ip.overrides"].value(config) == "10.0.0.7:3,0:0:0:0:0:0:0:1:5"


KAFKAS_PLAIN_USERS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="other"'
    ' user_ada="hush\\"" user_eve="a=b;c";'
)


def test_security_settings_need_a_listener() -> None:
    given = {"ssl.keystore.location": "/k", "sasl.enabled.mechanisms": "PLAIN"}
    assert resolve(Source(DATA | given)).without_effect == list(given)
    given["listeners"] = "SASL_SSL://h:1"
    assert not resolve(Source(DATA | given)).without_effect


def test_kafkas_login_modules_of_scram_are_accepted() -> None:
    name = "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config"
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="hush";'
    resolved = resolve(Source(DATA | {"listeners": "SASL_SSL://h:1", name: login}))
    assert resolved.notes == [f"{name}: this broker's login; the users of SCRAM are stored by 'onceflow credential'"]


def test_kafkas_login_modules_of_tokens_are_accepted() -> None:
    prefix, package = "listener.name.sasl_ssl.oauthbearer.sasl.", "org.apache.kafka.common.security.oauthbearer"
    given = {
        "listeners": "SASL_SSL://h:1",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "file:///keys",
        f"{prefix}jaas.config": f"{package}.OAuthBearerLoginModule required ;",
        f"{prefix}oauthbearer.jwt.validator.class": f"{package}.BrokerJwtValidator",
        f"{prefix}server.callback.handler.class": f"{package}.OAuthBearerValidatorCallbackHandler",
    }
    notes = resolve(Source(DATA | given)).notes
    assert ["has what validates tokens" in note for note in notes] == [True, False, True]
    assert "is always the case here: each token is verified" in notes[1]
    given[f"{prefix}server.callback.handler.class"] = "com.example.Handler"
    with pytest.raises(SettingRefused, match=r"=com.example.Handler is not org.apache.*: other callback handlers are"):
        resolve(Source(DATA | given))


def test_tokens_need_a_validator() -> None:
    given = {"listeners": "SASL_SSL://h:1", "sasl.enabled.mechanisms": "OAUTHBEARER"}
    with pytest.raises(SettingRefused, match=r"SASL_SSL: OAUTHBEARER needs .*jwks.* or sasl\.oauthbearer\.validator"):
        resolve(Source(DATA | given))
    given["sasl.oauthbearer.validator"] = "a:b"
    assert resolve(Source(DATA | given)).config
    with pytest.raises(SettingRefused, match="exclude each other"):
        resolve(Source(DATA | given | {"sasl.oauthbearer.jwks.endpoint.url": "file:///keys"}))


def test_key_sets_have_kafkas_settings() -> None:
    """Kafka's prefix of the mechanism may follow the prefix of the listener."""
    given = {
        "listeners": "SASL_SSL://h:1",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.sasl_ssl.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": "file:///my%20keys.json",
        "listener.name.sasl_ssl.sasl.oauthbearer.expected.audience": "kafka, other",
        "sasl.oauthbearer.sub.claim.name": "email",
    }
    security = resolve(Source(DATA | given)).config.security_of("SASL_SSL")
    assert security.bearer_keys_file == "/my keys.json"
    assert security.bearer_audiences == ("kafka", "other")
    assert (security.bearer_user_claim, security.bearer_clock_skew_seconds) == ("email", 30)


def test_client_auth_of_sasl_needs_the_prefix() -> None:
    """KIP-684: `ssl.client.auth` without a prefix is not for listeners with SASL."""
    given = {"listeners": "SASL_SSL://h:1,SSL://h:2", "ssl.client.auth": "required"}
    config = resolve(Source(DATA | given)).config
    assert [config.security_of(name).client_auth for name in ("SASL_SSL", "SSL")] == ["none", "required"]
    config = resolve(Source(DATA | given | {"listener.name.sasl_ssl.ssl.client.auth": "required"})).config
    assert config.security_of("SASL_SSL").client_auth == "required"


def test_secrets_are_not_shown() -> None:
    config = resolve(Source(DATA | {"ssl.keystore.key": SECRET, "ssl.key.password": "hush"})).config
    entries = {entry.name: entry for entry in described(config)}
    for name in ("ssl.keystore.key", "ssl.key.password"):
        assert (entries[name].value, entries[name].is_default, entries[name].is_secret) == (None, False, True)
        assert not SETTINGS[name].options, "an option would be visible in ps"
    plain = {"listeners": "SASL_SSL://h:1", "listener.name.sasl_ssl.plain.sasl.jaas.config": KAFKAS_PLAIN_USERS}
    ours = resolve(Source(DATA | plain)).config
    assert ours.security_of("SASL_SSL").plain_passwords == {"ada": 'hush"', "eve": "a=b;c"}
    assert "hush" not in repr(ours)
    wrong = {"ssl.keystore.key": "hush", "listener.name.plaintext.ssl.keystore.key": "hush"}
    wrong |= {"plain.sasl.jaas.config": "PlainLoginModule required user_ada=hush;"}
    for name, text in wrong.items():
        with pytest.raises(SettingRefused) as refused:
            resolve(Source(DATA | {name: text}))
        assert "hush" not in str(refused.value)


def test_missing_data_directory_is_refused() -> None:
    with pytest.raises(SettingRefused, match="--data DIRECTORY"):
        resolve(Source({}))


def test_kafkas_own_properties_file_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KAFKAS_OWN_FILE)
    resolved = resolve(from_file(file))
    assert resolved.config.listeners == (Endpoint("0.0.0.0"),)
    assert resolved.config.advertised == (Endpoint("localhost"),)
    noted = " ".join(resolved.notes)
    for name in parse_properties(KAFKAS_OWN_FILE):
        assert name in SETTINGS or name in noted, f"{name} is neither honoured nor logged"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("  a : b  ", {"a": "b  "}),
        ("a b c", {"a": "b c"}),
        ("a", {"a": ""}),
        ("# a=b\n! c=d\n\n", {}),
        ("a=1,\\\n   2", {"a": "1,2"}),
        ("a=x\\\\\nb=y", {"a": "x\\", "b": "y"}),
        ("a\\:b\\ c=d", {"a:b c": "d"}),
        ("a=\\u00e9\\t\\q", {"a": "é\tq"}),
        ("a=1\r\na=2\r", {"a": "2"}),
        ("a = = b", {"a": "= b"}),
        ("a=b\\", {"a": "b"}),
    ],
)
def test_properties_are_parsed_as_in_java(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_settings_and_fields_match() -> None:
    named = {path for setting in SETTINGS.values() for path in setting.paths}
    assert named == set(field_paths())
    assert not SETTINGS.keys() & FIXED.keys()
    assert all(setting.documentation for group in GROUPS.values() for setting in group)


def field_paths() -> Iterator[str]:
    """Yield every field of BrokerConfig, those of its parts as `log.NAME` and `security.NAME`."""
    for config_field in fields(BrokerConfig):
        if config_field.name in ("log", "security"):
            parts = fields(getattr(DEFAULTS, config_field.name))
            yield from (f"{config_field.name}.{part.name}" for part in parts)
        elif config_field.name in ("listener_security", "listener_limits"):
            continue  # the settings with the prefix of a listener
        else:
            yield config_field.name


def attributes_read() -> set[str]:
    """Return the names of all attributes that code under broker/, log/ and cli/ reads, settings and configs aside."""
    aside = {SOURCE / "broker" / "config.py", SOURCE / "log" / "config.py", *(SOURCE / "broker/settings").glob("*.py")}
    modules = {path for package in ("broker", "log", "cli") for path in (SOURCE / package).rglob("*.py")} - aside
    trees = [ast.parse(path.read_text()) for path in modules]
    return {
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_code_reads_every_setting() -> None:
    read = attributes_read()
    assert not [path for path in field_paths() if path.rpartition(".")[2] not in read], "no code reads these fields"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(onceflow, ["broker", *arguments], prog_name="onceflow")


def test_broker_starts_from_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nauto.create.topics.enable=true\nnum.io.threads=8\nnode.id=7\n")
    monkeypatch.setenv("ONCEFLOW_BROKER_NUM_PARTITIONS", "3")
    with BrokerProcess(tmp_path / "data", 0, "--config-file", str(file)) as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("t", -1)
            response = client.ask(apis.METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=False)
        assert len(response.topics[0].partitions) == 3
        assert [node.node_id for node in response.brokers] == [7]
        log = broker.log_path.read_text()
    assert "num.io.threads=8 has no effect: one event loop serves all connections" in log
    assert "open to other machines" not in log


@pytest.mark.parametrize("strict", [False, True])
def test_settings_without_effect_are_listed(tmp_path: Path, strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "num.io.threads=8\nnum.partitions=3\nlog.preallocate=false\nreplica.socket.receive.buffer.bytes=10000\n"
    )
    monkeypatch.setenv("ONCEFLOW_BROKER_ZOOKEEPER_MAX_IN_FLIGHT_REQUESTS", "10")
    names = "num.io.threads, replica.socket.receive.buffer.bytes, zookeeper.max.in.flight.requests"
    listed = f"settings without effect here: {names}"
    if strict:
        refused = run("--data", str(tmp_path / "data"), "--config-file", str(file), "--strict-settings")
        assert (refused.exit_code, f"Error: {listed}; omit them" in refused.stderr) == (2, True)
        assert not (tmp_path / "data").exists()
        return
    with BrokerProcess(tmp_path / "data", 0, "--config-file", str(file)) as broker:
        lines = broker.log_path.read_text().splitlines()
    assert [line.partition(" WARNING ")[2] for line in lines if " WARNING " in line] == [listed]
    file.write_text("log.preallocate=false\n")
    monkeypatch.delenv("ONCEFLOW_BROKER_ZOOKEEPER_MAX_IN_FLIGHT_REQUESTS")
    with BrokerProcess(tmp_path / "quiet", 0, "--config-file", str(file), "--strict-settings") as broker:
        assert "WARNING" not in broker.log_path.read_text()


def test_open_listener_logs_a_warning(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "open", 0, "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:9") as broker:
        assert "open to other machines" in broker.log_path.read_text()


def test_listed_settings_are_a_valid_file(tmp_path: Path) -> None:
    listed = run("--list-settings")
    assert listed.exit_code == 0
    given = parse_properties(listed.stdout)
    stronger = {"node.id", "log.retention.minutes", "log.retention.ms", "log.roll.ms"}
    unset = {name for name, setting in SETTINGS.items() if not setting.default}
    assert {"log.dirs", "advertised.listeners", "cluster.id", "ssl.keystore.location"} < unset
    assert given.keys() == SETTINGS.keys() - unset - stronger
    assert {f"#{name}={SETTINGS[name].default}" for name in stronger} <= set(listed.stdout.splitlines())
    assert resolve(Source(DATA | given)).config == BrokerConfig(Path("/data"))


def test_edited_listed_setting_takes_effect() -> None:
    listed = run("--list-settings").stdout
    for old, new in (("log.retention.hours=168", "log.retention.hours=24"), ("log.roll.hours=168", "log.roll.hours=1")):
        assert old in listed
        listed = listed.replace(old, new)
    log = resolve(Source(DATA | parse_properties(listed))).config.log
    assert (log.retention_ms, log.segment_ms) == (24 * 3_600_000, 3_600_000)


def test_overridden_setting_logs_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.retention.hours=24\nlog.retention.ms=5\nlog.roll.hours=1\nlog.roll.ms=3600000\n")
    resolved = resolve(from_file(file), Source(DATA | {"log.retention.minutes": "7"}))
    assert resolved.warnings == [
        f"{file}: log.retention.hours=24 has no effect: log.retention.ms=5 in the same place takes precedence"
    ]
    with BrokerProcess(tmp_path / "data", 0, "--config-file", str(file)) as broker:
        assert f"WARNING {resolved.warnings[0]}" in broker.log_path.read_text()


def test_help_is_short_with_all_options() -> None:
    shown = run("--help").stdout
    assert len(shown.splitlines()) < 80
    assert "--max-connections-per-ip" not in shown
    refused = run("--max-connections-per-ip", "x", "--data", "x")
    assert refused.exit_code == 2
    assert "'x' is not a whole number from 0" in refused.stderr


def test_admin_client_reads_the_settings(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(10)
    assert entries.keys() >= SETTINGS.keys()
    assert entries["log.retention.hours"].value == "168"
    assert entries["num.partitions"].is_read_only


def test_operating_page_has_every_setting() -> None:
    page = (SOURCE.parents[1] / "docs" / "operating.md").read_text()
    generated = settings_page.with_settings(page)
    assert page == generated, "run: .venv/bin/python -m onceflow.broker.settings.page docs/operating.md"
    assert all(f"#### {name}\n" in page for name in SETTINGS)
