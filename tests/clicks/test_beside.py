"""Keys beside the counts: who may read them, to whom they belong, and what a reset makes of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import redis as redis_clients
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.clicks.beside import NotRecorded
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.clicks.results import Results
from onceflow.spark.redis.marker import claims_key
from tests.conftest import RedisProcess


@pytest.fixture
def job(redis_server: RedisProcess, topic: str, tmp_path: Path) -> ClickPipeline:
    return ClickPipeline("127.0.0.1:1", topic, str(tmp_path / "checkpoint"), redis_server.url, f"test::{topic}")


def test_the_last_job_is_announced(job: ClickPipeline) -> None:
    """`h` and `{h}` share their keys, and are two jobs."""
    with Results(job.redis_url, job.hash_key) as results, Results(job.redis_url, f"{{{job.hash_key}}}") as braced:
        assert results.announced() is None
        for other in (job, replace(job, key_field="player"), replace(job, topic="other")):
            other.announce()
            assert results.announced() == (other.plan, other.topic)
            assert braced.announced() is None


def test_keys_of_others_are_left(job: ClickPipeline) -> None:
    with Results(job.redis_url, job.hash_key) as results, redis_clients.Redis.from_url(job.redis_url) as client:
        key, claims = results.keys.announced, claims_key(results.keys.marker)
        client.set(key, "text of another program")
        with pytest.raises(NotRecorded, match="WRONGTYPE"):
            job.announce()
        assert client.hget(claims, key) is None
        client.delete(key)
        client.hset(claims, key, "{other}:onceflow")
        with pytest.raises(NotRecorded, match=r"belongs to marker \{other\}:onceflow"):
            job.announce()
        assert not client.exists(key)


@pytest.mark.parametrize("is_announced", [False, True])
def test_an_announced_job_has_no_counts(job: ClickPipeline, is_announced: bool) -> None:
    """A reset with the address of another Redis keeps the checkpoint, also if a job has started there."""
    checkpoint = Path(job.checkpoint)
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"8b5c8a3e-0b7e-4c1c-9b8d-1d0b8f6c0f11"}')
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    if is_announced:
        job.announce()
    words = ["--redis", job.redis_url, "--hash-key", job.hash_key, "--checkpoint", job.checkpoint, "--execute"]
    refused = CliRunner().invoke(onceflow, ["sink", "reset", "redis", *words])
    assert "has completed batches" in str(refused.exception)
    assert (checkpoint / "commits" / "0").exists()
    done = CliRunner().invoke(onceflow, ["sink", "reset", "redis", *words, "--missing-ok"])
    assert done.exit_code == 0, done.output
    assert "--key" not in done.output, "nothing was counted"
    with Results(job.redis_url, job.hash_key) as results:
        assert results.announced() is None
