"""Serializers and deserializers: what each type becomes, which bytes and rows are refused, and a copy by Spark."""

import datetime
import decimal
import importlib
import io
import json
import pickle
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from onceflow.client.cluster import Cluster
from onceflow.client.lag import log_ends
from onceflow.client.records import read_records
from onceflow.remedies import Remedy
from onceflow.spark.avro import AvroDeserializer, AvroSerializer
from onceflow.spark.errors import WrongOption
from onceflow.spark.serialization import (
    Deserializer,
    JsonDeserializer,
    JsonSerializer,
    SerializationFailed,
    StringDeserializer,
    StringSerializer,
    _Deserialize,
    _Serialize,
    deserialized,
    serialized,
)
from tests import remedies
from tests.spark.conftest import RunExample, Send

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/spark/poc_copy.py"

CLICK = StructType([StructField("uid", types.StringType()), StructField("click_count", types.LongType())])
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]}
AVRO_CLICK = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "uid", "type": "string"},
        {"name": "click_count", "type": "long"},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "os", "type": {"type": "enum", "name": "Os", "symbols": ["iOS", "Android"]}},
        {
            "name": "place",
            "type": ["null", {"type": "record", "name": "P", "fields": [{"name": "x", "type": "double"}]}],
        },
    ],
}
AT = datetime.datetime(2026, 5, 1, 12, 30, tzinfo=datetime.UTC)
CLICK_VALUES = {
    "uid": "ada",
    "click_count": 6,
    "price": decimal.Decimal("12.50"),
    "at": AT,
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "os": "iOS",
    "place": {"x": 0.5},
}


def columns_of(
    deserializer: Deserializer, values: Sequence[bytes | None], *, on_error: Any = "fail"
) -> list[dict[str, Any]]:
    """Return what a task makes of these values, without Spark; they have offsets from 7 in `t-1`."""
    corrupt = [StructField("_corrupt_record", types.BinaryType()), StructField("_corrupt_reason", types.StringType())]
    kept = [StructField("offset", types.LongType())]
    schema = StructType([*deserializer.schema.fields, *kept, *(corrupt if on_error == "keep" else [])])
    task = _Deserialize(deserializer, "value", ("offset",), on_error, to_arrow_schema(schema, timezone="UTC"))
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.binary()),
            "topic": ["t"] * len(values),
            "partition": [1] * len(values),
            "offset": list(range(7, 7 + len(values))),
        }
    )
    (table,) = pickle.loads(pickle.dumps(task))(iter([batch]))
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows


def bytes_of(serializer: Any, rows: Sequence[Mapping[str, Any]], schema: StructType) -> list[bytes | None]:
    """Return what a task makes of these rows, without Spark."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    task = _Serialize(serializer, tuple(schema.fieldNames()), (), pa.schema([("value", pa.binary())]))
    (table,) = pickle.loads(pickle.dumps(task))(iter([pa.RecordBatch.from_pylist(rows, schema=arrow)]))
    data: list[bytes | None] = table.column("value").to_pylist()
    return data


def test_json_becomes_columns() -> None:
    values = [b'{"uid":"ada","click_count":6,"other":1}', None, b'{"uid":null}']
    assert columns_of(JsonDeserializer(CLICK), values) == [
        {"uid": "ada", "click_count": 6, "offset": 7},
        {"uid": None, "click_count": None, "offset": 8},
        {"uid": None, "click_count": None, "offset": 9},
    ]


def test_json_has_every_type() -> None:
    """Written and read again: the same values."""
    schema = StructType(
        [
            StructField("text", types.StringType()),
            StructField("flag", types.BooleanType()),
            StructField("small", types.ShortType()),
            StructField("ratio", types.DoubleType()),
            StructField("price", types.DecimalType(10, 2)),
            StructField("day", types.DateType()),
            StructField("at", types.TimestampType()),
            StructField("data", types.BinaryType()),
            StructField("tags", types.ArrayType(types.StringType())),
            StructField("counts", types.MapType(types.StringType(), types.LongType())),
            StructField("place", StructType([StructField("x", types.DoubleType())])),
        ]
    )
    row = {
        "text": "ü",
        "flag": True,
        "small": -3,
        "ratio": 0.1,
        "price": decimal.Decimal("12.50"),
        "day": datetime.date(2026, 5, 1),
        "at": AT,
        "data": b"\x00\xff",
        "tags": ["a", None],
        "counts": {"x": 1, "y": None},
        "place": {"x": 1.5},
    }
    data = bytes_of(JsonSerializer(), [row], schema)
    assert columns_of(JsonDeserializer(schema), data) == [{**row, "offset": 7}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"nonsense", "malformed"),
        (b"\xff", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"click_count":"6"}', "click_count"),
        (b'{"click_count":9223372036854775808}', "click_count"),
    ],
)
def test_invalid_json_names_its_place(value: bytes, reason: str) -> None:
    with pytest.raises(SerializationFailed, match=rf"t-1 offset 8 cannot be deserialized: .*{reason}"):
        columns_of(JsonDeserializer(CLICK), [b"{}", value])


def test_invalid_bytes_are_kept_on_request() -> None:
    rows = columns_of(JsonDeserializer(CLICK), [b"x", b'{"uid":"ada"}', None], on_error="keep")
    assert rows[0]["_corrupt_record"] == b"x"
    assert "malformed" in rows[0]["_corrupt_reason"]
    assert rows[1] == {"uid": "ada", "click_count": None, "offset": 8, "_corrupt_record": None, "_corrupt_reason": None}
    assert rows[2]["_corrupt_reason"] is None


def test_a_type_without_json_form() -> None:
    with pytest.raises(WrongOption, match="type map<int,string> has no form in JSON"):
        JsonDeserializer(StructType([StructField("m", types.MapType(types.IntegerType(), types.StringType()))]))


def test_text_both_ways() -> None:
    assert columns_of(StringDeserializer(), ["ü".encode(), None, b""]) == [
        {"text": "ü", "offset": 7},
        {"text": None, "offset": 8},
        {"text": "", "offset": 9},
    ]
    one = StructType([StructField("text", types.StringType())])
    assert bytes_of(StringSerializer(), [{"text": "ü"}, {"text": None}], one) == ["ü".encode(), None]
    with pytest.raises(SerializationFailed, match="codec can't decode"):
        columns_of(StringDeserializer(), [b"\xff"])
    with pytest.raises(SerializationFailed, match="one column, not uid, click_count; specify columns="):
        bytes_of(StringSerializer(), [{"uid": "a", "click_count": 1}], CLICK)


def test_avro_without_fastavro_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "onceflow.spark.avro")
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ModuleNotFoundError, match="avro needs the package fastavro, ") as error:
        importlib.import_module("onceflow.spark.avro")
    assert remedies.find(Remedy.INSTALL_EXTRA, str(error.value))["package"].endswith("[avro]")


def test_avro_both_ways() -> None:
    """Spark's types are those of the schema; fastavro itself reads what the serializer wrote."""
    deserializer = AvroDeserializer(json.dumps(AVRO_CLICK))
    assert deserializer.schema.simpleString() == (
        "struct<uid:string,click_count:bigint,price:decimal(6,2),at:timestamp,tags:array<string>,"
        "counts:map<string,int>,os:string,place:struct<x:double>>"
    )
    assert [field.nullable for field in deserializer.schema] == [False, False, True, False, False, False, False, True]
    nothing = {**CLICK_VALUES, "price": None, "place": None, "tags": [], "counts": {}}
    data = bytes_of(AvroSerializer(AVRO_CLICK), [CLICK_VALUES, nothing], deserializer.schema)
    assert fastavro.schemaless_reader(pa.BufferReader(data[0]), AVRO_CLICK, None) == CLICK_VALUES
    assert columns_of(deserializer, data) == [{**CLICK_VALUES, "offset": 7}, {**nothing, "offset": 8}]


def test_avro_reader_schema_is_resolved() -> None:
    old = {"type": "record", "name": "C", "fields": [{"name": "uid", "type": "string"}]}
    new = {**old, "fields": [*old["fields"], {"name": "n", "type": "int", "default": 3}]}
    (data,) = bytes_of(AvroSerializer(old), [{"uid": "ada"}], StructType([StructField("uid", types.StringType())]))
    assert columns_of(AvroDeserializer(old, new), [data]) == [{"uid": "ada", "n": 3, "offset": 7}]


def test_avro_uuids_are_text_at_any_depth() -> None:
    """Spark's from_avro gives the same types. A time of day is the number that it is stored as."""
    uuid_type = {"type": "string", "logicalType": "uuid"}
    types_of = {
        "id": uuid_type,
        "maybe": ["null", uuid_type],
        "ids": {"type": "array", "items": uuid_type},
        "by_name": {"type": "map", "values": uuid_type},
        "inner": {"type": "record", "name": "Inner", "fields": [{"name": "id", "type": uuid_type}]},
        "time": {"type": "int", "logicalType": "time-millis"},
    }
    fields = [{"name": name, "type": avro} for name, avro in types_of.items()]
    schema = {"type": "record", "name": "Ids", "fields": fields}
    text = str(uuid.uuid4())
    row = {"id": text, "maybe": text, "ids": [text], "by_name": {"a": text}, "inner": {"id": text}, "time": 1}
    deserializer = AvroDeserializer(schema, schema)
    (data,) = bytes_of(AvroSerializer(schema), [row], deserializer.schema)
    assert data is not None
    as_objects: Any = fastavro.schemaless_reader(io.BytesIO(data), schema, None)
    assert str(as_objects["ids"][0]) == text
    assert columns_of(deserializer, [data]) == [{**row, "offset": 7}]


def test_avro_refuses_what_does_not_fit() -> None:
    (data,) = bytes_of(AvroSerializer(AVRO_CLICK), [CLICK_VALUES], AvroDeserializer(AVRO_CLICK).schema)
    assert data is not None
    with pytest.raises(SerializationFailed, match="1 bytes are left after the record"):
        columns_of(AvroDeserializer(AVRO_CLICK), [data + b"x"])
    with pytest.raises(SerializationFailed, match="t-1 offset 7 cannot be deserialized"):
        columns_of(AvroDeserializer(AVRO_CLICK), [data[:-1]])
    with pytest.raises(SerializationFailed, match=r"the row \{'uid': None\} cannot be serialized"):
        bytes_of(AvroSerializer(AVRO_CLICK), [{"uid": None}], StructType([StructField("uid", types.StringType())]))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "the Avro schema is not valid"),
        ({"type": "record", "name": "A"}, "is not a record with fields"),
        ({"type": "string"}, "is not a record with fields"),
        ({"type": "record", "name": "A", "fields": [{"name": "f", "type": ["int", "string"]}]}, "field 'f'.*no Spark"),
        (
            {"type": "record", "name": "A", "fields": [{"name": "next", "type": ["null", "A"]}]},
            "field 'next'.*has no Spark type",
        ),
    ],
    ids=["no JSON", "no fields", "no record", "union", "recursive"],
)
def test_avro_schemas_that_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(WrongOption, match=message):
        AvroDeserializer(schema)


def records_of(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    return spark.read.format("onceflow").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()


class Reversed:
    """A user's own format: the text backwards."""

    schema = StructType([StructField("text", types.StringType())])

    def deserialize(self, data: bytes) -> dict[str, str]:
        return {"text": data.decode()[::-1]}

    def serialize(self, row: Mapping[str, Any]) -> bytes:
        return str(row["text"])[::-1].encode()


def test_a_format_of_ones_own(spark: SparkSession, bootstrap: str, topic: str, send: Send) -> None:
    """Through Spark both ways, beside the record's own columns, which the Kafka sink takes."""
    send(["abc", None, "def"], key="k")
    records = records_of(spark, bootstrap, topic)
    rows = deserialized(records, Reversed(), keep=["key", "offset"]).orderBy("offset")
    assert [(row.text, row.key, row.offset) for row in rows.collect()] == [
        ("cba", b"k", 0),
        (None, b"k", 1),
        ("fed", b"k", 2),
    ]
    written = serialized(rows.where("text IS NOT NULL"), Reversed(), columns=["text"]).orderBy("value")
    assert [(row.value, row.key) for row in written.collect()] == [(b"abc", b"k"), (b"def", b"k")]


def test_a_record_that_fails_names_its_place(spark: SparkSession, bootstrap: str, topic: str, send: Send) -> None:
    send(["{}", "x"])
    records = records_of(spark, bootstrap, topic)
    with pytest.raises(PySparkException, match=rf"{topic}-0 offset 1 cannot be deserialized"):
        deserialized(records, JsonDeserializer("uid string")).collect()
    (bad,) = (
        deserialized(records, JsonDeserializer("uid string"), on_error="keep")
        .where("_corrupt_reason IS NOT NULL")
        .collect()
    )
    assert (bad["_corrupt_record"], bad["offset"]) == (b"x", 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "text"}, "column 'text' does not exist; the columns are key, value"),
        ({"keep": ["value", "offsets"]}, "column 'offsets' does not exist"),
        ({"on_error": "ignore"}, "on_error 'ignore' is not valid"),
        ({"deserializer": StringDeserializer("offset")}, "column 'offset' is there twice; leave it out of keep="),
    ],
)
def test_options_that_are_refused(
    options: dict[str, Any], message: str, spark: SparkSession, bootstrap: str, topic: str, send: Send
) -> None:
    send(["a"])
    records = records_of(spark, bootstrap, topic)
    with pytest.raises(WrongOption, match=message):
        deserialized(records, **{"deserializer": StringDeserializer(), **options})


@pytest.mark.parametrize("mode", ["exactly-once", "at-least-once", "none"])
def test_the_example_copies(
    mode: str,
    run_example: RunExample,
    bootstrap: str,
    cluster: Cluster,
    topic: str,
    send: Send,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run twice, in this process: the second run resumes where the first one ended."""
    output = f"{topic}-output"
    cluster.create_topic(topic, 1)
    cluster.create_topic(output, 1)
    for values in (["a", "ü"], ["b"]):
        send(values)
        run_example(EXAMPLE, bootstrap, mode, topic, output)
        assert f"{topic} is copied to {output}, mode {mode}" in capsys.readouterr().out
    start, end = log_ends(cluster, output, [0])[0]
    assert [record.value for record in read_records(cluster, output, 0, start, end)] == [b"a", "ü".encode(), b"b"]
