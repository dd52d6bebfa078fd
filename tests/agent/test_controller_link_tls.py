"""The agent's line to a controller over TLS: its authority counts on embedded nodes, too, and is read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.adapters.journal_cases import run
from tests.api.test_tls import AGENT, beat, served
from tests.certificates import Authority

from holdfast.agent.controller_link import ControllerLink
from holdfast.client import Trust
from holdfast.errors import LinkError, RefusedError


def test_an_embedded_node_trusts_the_authority_that_it_is_given(tmp_path: Path):
    """Its transport, which can be cut, checks certificates by the same authority; without it nothing is said."""
    ours = Authority(tmp_path)
    (tmp_path / "token").write_text(AGENT)
    (tmp_path / "node").mkdir()

    async def work() -> None:
        async with served(tmp_path, ours.files()) as (_, server):
            for trust, good in ((ours.trust, True), (Trust(), False)):
                link = ControllerLink(
                    server.url, token_file=tmp_path / "token", trust=trust, node_dir=tmp_path / "node"
                )
                client = await link()
                if good:
                    assert (await client.beat(beat("n1"))).lease_s > 0
                else:
                    with pytest.raises(LinkError, match="CERTIFICATE_VERIFY_FAILED"):
                        await client.beat(beat("n1"))
                await link.close()

    run(work)


def test_a_renewed_certificate_of_the_agent_is_taken(tmp_path: Path):
    """The same files, the same connection; changed ones, a new connection; missing ones wait, as an absent controller."""
    ours = Authority(tmp_path)
    mine = ours.client("agent:n1")

    async def work() -> None:
        link = ControllerLink("https://127.0.0.1:1", trust=mine)
        first = await link()
        assert await link() is first
        os.utime(mine.cert_file, ns=(1, 1))
        second = await link()
        assert second is not first
        mine.cert_file.unlink()
        with pytest.raises(LinkError, match=r"agent-n1\.pem"):
            await link()
        ours.client("agent:n1")
        assert await link() is not second
        await link.close()

    run(work)


def test_no_token_leaves_over_plain_http_unless_the_site_allows_it(tmp_path: Path):
    """The error comes before a connection is opened."""
    (tmp_path / "token").write_text("hft_x")

    async def work() -> None:
        with pytest.raises(RefusedError, match="HOLDFAST_PLAIN_HTTP"):
            await ControllerLink("http://10.0.0.5:1", token_file=tmp_path / "token")()
        allowed = ControllerLink("http://10.0.0.5:1", token_file=tmp_path / "token", trust=Trust(plain_http=True))
        await allowed()
        await allowed.close()

    run(work)


def test_a_file_that_is_exchanged_is_seen_whatever_its_time(tmp_path: Path):
    """Tools that set every file's time to the same moment (images, Nix) exchange certificates, too."""
    former, fresh = tmp_path / "me.pem", tmp_path / "me.pem.new"
    for path, text in ((former, "former"), (fresh, "fresh!")):
        path.write_text(text)
        os.utime(path, ns=(1, 1))
    trust = Trust(cert_file=former)
    before = trust.stamp()
    fresh.replace(former)
    assert trust.stamp() != before
