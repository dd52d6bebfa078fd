"""The pages over a real server: what they show, who may see and order, and what an attacker tries."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
import socket
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from tests.cockpit.served import CSRF, KEY, TOKENS, csrf_of, nodes_of, run, served, the_job
from tests.controller.cases import until

from holdfast.api import Role
from holdfast.api.operate import etag_of, gist_of
from holdfast.cockpit import pages
from holdfast.cockpit.board import Board
from holdfast.controller.fleet import Fleet
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, NodeView
from holdfast.ports import LeaseRow

pytestmark = pytest.mark.timeout(600)

PAGES = (
    "/", "/jobs", "/nodes", "/incidents", "/orders", "/audit", "/efficiency", "/drills", "/settings", "/validation"
)  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr", "rect", "path"}

PAYLOADS = (
    "<script>window.pwned=1</script>",
    '"><img src=x onerror="window.pwned=1">',
    "'><svg onload=window.pwned=1>",
    "</pre></title></textarea><script>window.pwned=1</script>",
    "{{ 7*7 }}{% for x in ().__class__.__base__.__subclasses__() %}{{x}}{% endfor %}",
    "javascript:window.pwned=1",
    "\\u003cscript\\u003ewindow.pwned=1\\u003c/script\\u003e",
    "<!--<script>window.pwned=1</script>-->",
    'data: x\n\nevent: update\ndata: {"seq":1}',
    "\u202egnp.exe\u2066",
    "\x1b[31mred\x07\x00nul",
    "<iframe srcdoc='<script>parent.pwned=1</script>'>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "../../../../etc/passwd",
    "a" * 5000,
)


class Strict(HTMLParser):
    """Collects scripts, handlers and inline styles; every tag must be closed where it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name.startswith("on") or name in {"style", "srcdoc"}:
                self.wrong.append(f"{tag} {name}")
            if name in {"href", "src", "action"} and not (value or "").startswith(("/", "#")):
                self.wrong.append(f"{tag} {name}={value}")
        if tag in {"iframe", "object", "embed", "base", "img"}:
            self.wrong.append(tag)
        if tag == "script" and not dict(attrs).get("src", "").startswith("/static/"):
            self.wrong.append("script")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"/{tag} closes something else")


def check(html: str) -> None:
    reader = Strict()
    reader.feed(html)
    assert reader.wrong == []
    assert reader.open == []


def test_every_page_is_there_and_whole(tmp_path: Path) -> None:
    """Every page answers with well-formed HTML, the strict policy of contents, and no script or style of its own."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            await house.fault()
            incident = house.cockpit.fleet.open_incidents()[0].id
            for path in (*PAGES, "/jobs/7", "/nodes/n1", "/validation/n1", f"/incidents/{incident}"):
                answer = await http.get(path)
                assert answer.status_code == 200, (path, answer.text[:500])
                policy = answer.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "script-src 'self';" in policy
                assert "unsafe" not in policy
                assert answer.headers["cache-control"] == "no-store"
                check(answer.text)
            assert "Xid 74: NVLINK Error" in (await http.get("/")).text
            assert (await http.get("/nodes/nobody")).status_code == 404
            assert (await http.get("/nothing")).status_code == 404

    run(work)


def test_hostile_content_stays_text_on_every_page(tmp_path: Path) -> None:
    """Log lines, names and comments with a payload each: pages stay whole, no tag, handler or address comes of them."""
    nodes = [*nodes_of(2), NodeView(name='n"><script>', group="</h3><script>1</script>", alive=True)]
    job = the_job(
        name="<script>window.pwned=1</script>", user="'\"><img src=x onerror=1>", reason="</dd><svg onload=1>"
    )

    async def work() -> None:
        async with served(tmp_path, nodes=nodes, jobs=[job]) as house, house.browser() as http:
            for number, payload in enumerate(PAYLOADS):
                await house.fault(
                    "n1", text=payload, number=number, summary=payload[:200], rule=f"log.{payload[:60]}",
                    fingerprint=payload[:100],
                )  # fmt: skip
            token = await csrf_of(http, "/nodes/n2")
            for payload in PAYLOADS[:6]:
                await http.post("/operate", data={"csrf": token, "node": "n2", "command": "drain", "why": payload})
            found = [line.id for line in house.cockpit.fleet.incidents.values()]
            things = ["/jobs/7", "/nodes/n1", "/nodes/n2", "/nodes/n%22%3E%3Cscript%3E"]
            for path in (*PAGES, *things, *(f"/incidents/{one}" for one in found)):
                answer = await http.get(path)
                assert answer.status_code == 200, path
                check(answer.text)
                assert "<script>window" not in answer.text
            for payload in PAYLOADS:
                for path in ("/incidents", "/jobs", "/nodes", "/audit"):
                    answer = await http.get(path, params={"q": payload[:300]})
                    assert answer.status_code == 200, (path, payload)
                    check(answer.text)

    run(work)


def test_what_goes_to_open_pages_is_escaped_and_cannot_forge_messages(tmp_path: Path) -> None:
    """A live part with hostile text is one message whose HTML is escaped."""

    async def work() -> None:
        async with (
            served(tmp_path) as house,
            house.browser(Role.VIEWER) as http,
            http.stream("GET", "/live", params={"on": "overview", "since": house.controller.seq}) as stream,
        ):
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("retry:")
            await house.fault(summary="<script>1</script>\n\nevent: update\ndata: {}")
            seen = []
            async with asyncio.timeout(200):
                async for line in lines:
                    seen.append(line)
                    if line.startswith("data:") and "incidents" in line:
                        break
            assert "<script>" not in "".join(seen)
            assert "&lt;script&gt;" in "".join(seen)
            assert {line.partition(":")[0] for line in seen if line} <= {"event", "id", "data", "retry"}

    run(work)


def test_nobody_sees_a_page_without_a_token_that_may_read(tmp_path: Path) -> None:
    """No session leads to the log-in page and back; a wrong token and an agent's open nothing."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(None) as http:
            for path in (*PAGES, "/jobs/7", "/nodes/n1", "/incidents/x", "/orders/x"):
                answer = await http.get(path)
                assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/login"), path
            assert (await http.get("/live")).status_code == 403
            assert (await http.get("/jobs/7?chart=steps")).status_code == 303
            assert (await http.post("/login", data={"token": "hft_wrong"})).status_code == 403
            shared = (await http.get("/jobs?q=gpt&state=running")).headers["location"]
            assert "%2Fjobs%3Fq%3Dgpt%26state%3Drunning" in shared, (
                "a shared link leads where it says, after the log-in"
            )
            answer = await http.post("/login", data={"token": TOKENS[Role.AGENT], "next": "/nodes/n1"})
            assert (answer.status_code, "sign in with a person&#39;s" in answer.text) == (403, True)
            assert (await http.get("/")).status_code == 303, "no session was opened"
            answer = await http.post("/login", data={"token": TOKENS[Role.VIEWER], "next": "/nodes/n1"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/nodes/n1")
            assert (await http.get("/nodes/n1")).status_code == 200

    run(work)


def test_a_controller_that_was_superseded_shows_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it knows may be old. The page that says so keeps its look."""

    async def superseded() -> LeaseRow:
        return LeaseRow("heir", 2, 0.0)

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            monkeypatch.setattr(house.controller, "may_act", lambda: False)
            monkeypatch.setattr(house.controller.journal, "lease", superseded)
            for path in (*PAGES, "/jobs/7", "/live"):
                answer = await http.get(path)
                assert (answer.status_code, "epoch 1 was superseded" in answer.text) == (503, True), path
            style = re.search(r'href="(/static/[^"]+)"', answer.text)
            assert style is not None
            assert (await http.get(style[1])).status_code == 200

    run(work)


def test_log_out_and_revocation_end_a_session(tmp_path: Path) -> None:
    """After a log-out the cookie is worth nothing, also when it is sent again; so it is once its token is gone."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser() as http:
            kept = dict(http.cookies)
            assert (await http.post("/logout", data={"csrf": await csrf_of(http, "/nodes/n1")})).status_code == 303
            for name, value in kept.items():
                http.cookies.set(name, value)
            assert (await http.get("/")).status_code == 303
            async with house.browser(Role.VIEWER) as other:
                assert (await other.get("/")).status_code == 200
                book = tmp_path / "tokens"
                lines = [line for line in book.read_text().splitlines() if not line.startswith("viewer")]
                staged = tmp_path / "staged"
                staged.write_text("\n".join(lines) + "\n")
                staged.chmod(0o600)
                staged.replace(book)
                async with asyncio.timeout(200):
                    while (await other.get("/")).status_code != 303:
                        await asyncio.sleep(0.05)

    run(work)


def test_a_planted_session_is_not_taken_over_and_the_cookie_is_kept_from_scripts(tmp_path: Path) -> None:
    """Log-in gives another cookie than the one that was there (fixation), HttpOnly and SameSite."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(None) as http:
            http.cookies.set("holdfast_session", "planted", domain="127.0.0.1")
            answer = await http.post("/login", data={"token": TOKENS[Role.VIEWER]})
            said = answer.headers["set-cookie"]
            assert "planted" not in said
            assert "HttpOnly" in said
            assert "SameSite=lax" in said
            async with house.browser(Role.OPERATOR) as first:
                before = first.cookies["holdfast_session"]
                await first.post("/login", data={"token": TOKENS[Role.VIEWER]})
                assert first.cookies["holdfast_session"] != before
                stale = httpx.AsyncClient(base_url=house.url, cookies={"holdfast_session": before})
                async with stale:
                    assert (await stale.get("/")).status_code == 303

    run(work)


def test_a_form_that_was_loaded_before_a_change_is_refused_and_keeps_its_reason(tmp_path: Path) -> None:
    """A node that has meanwhile got an incident is not returned unseen; steps of a job meanwhile change nothing."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser() as http:
            page = (await http.get("/nodes/n4")).text
            seen = re.search(r'name="seen" value="([^"]+)"', page)
            assert seen
            assert f'<data value="{seen.group(1)}">' in page
            form = {
                "csrf": await csrf_of(http, "/nodes/n4"), "node": "n4", "command": "return", "why": "it was me",
                "seen": html.unescape(seen.group(1)), "next": "/nodes/n4",
            }  # fmt: skip
            await house.fault("n4")
            await http.post("/operate", data=form)
            page = (await http.get("/nodes/n4")).text
            assert "changed since you looked" in page
            assert 'value="it was me"' in page
            assert await house.controller.journal.events(kind="operator_command") == []
            assert 'value="it was me"' not in (await http.get("/nodes/n4")).text
            record = (await house.controller.journal.jobs(job="7"))[0]
            tag, before = gist_of(record), etag_of(record)
            record.best_step += 1
            assert gist_of(record) == tag
            assert etag_of(record) != before

    run(work)


def test_forms_of_other_sites_change_nothing(tmp_path: Path) -> None:
    """Without the session's secret, with another's, or from another origin, no form is taken."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser() as http, house.browser() as other:
            deed = {"node": "n3", "command": "drain", "why": "test"}
            own, foreign = await csrf_of(http, "/nodes/n3"), await csrf_of(other, "/nodes/n3")
            assert own != foreign
            for form, headers in (
                (deed, {}),
                (deed | {"csrf": ""}, {}),
                (deed | {"csrf": foreign}, {}),
                (deed | {"csrf": own}, {"Origin": "https://evil.example"}),
                (deed | {"csrf": own}, {"Sec-Fetch-Site": "cross-site"}),
            ):
                for path in ("/operate", "/settings", "/drills", "/logout"):
                    assert (await http.post(path, data=form, headers=headers)).status_code == 403, (path, form)
            assert (
                await http.post("/login", data={"token": "x"}, headers={"Origin": "https://e.x"})
            ).status_code == 403
            assert not await house.controller.journal.events(kind="operator_command")
            good = await http.post("/operate", data=deed | {"csrf": own}, headers={"Origin": house.url})
            assert good.status_code == 303
            assert len(await house.controller.journal.events(kind="operator_command")) == 1

    run(work)


def test_a_viewer_looks_and_an_operator_orders_with_a_reason(tmp_path: Path) -> None:
    """The form is not shown to a viewer, and refused from one; an operator's deed is journalled with who and why."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as viewer, house.browser() as http:
            page = (await viewer.get("/nodes/n3")).text
            assert 'value="drain"' not in page
            secret = CSRF.search(page)
            assert secret
            deed = {"node": "n3", "command": "drain", "why": "noise in the fan", "next": "/nodes/n3"}
            await viewer.post("/operate", data=deed | {"csrf": secret.group(1)})
            assert "Not done" in (await viewer.get("/nodes/n3")).text
            token = await csrf_of(http, "/nodes/n3")
            await http.post("/operate", data=deed | {"csrf": token, "why": " "})
            assert "say in a few words why" in (await http.get("/nodes/n3")).text
            await http.post("/operate", data=deed | {"csrf": token})
            assert "will be drained" in (await http.get("/nodes/n3")).text
            told = await house.controller.journal.events(kind="operator_command")
            assert [(one.who, one.why, one.node) for one in told] == [("the-operator", "noise in the fan", "n3")]
            await until(lambda: house.cockpit.fleet.nodes["n3"].state != "healthy")
            assert "noise in the fan" in (await http.get("/audit")).text
            await http.post("/operate", data={"csrf": token, "job": "7", "command": "release", "why": "go"})
            assert "nobody holds it" in (await http.get("/jobs/7")).text

    run(work)


def test_an_advised_order_is_approved_on_its_page(tmp_path: Path) -> None:
    """In mode advise the order stands on the overview; yes carries it out, no drops it, a stale page is told so."""

    async def work() -> None:
        async with served(tmp_path, policy='mode = "advise"\n') as house, house.browser() as http:
            await house.fault("n4")
            await until(lambda: any(one.status == "proposed" for one in house.cockpit.fleet.waiting.values()))
            order = next(one for one in house.cockpit.fleet.waiting.values() if one.status == "proposed")
            assert "Decide" in (await http.get("/")).text
            page = (await http.get(f"/orders/{order.order.id}")).text
            seen = re.search(r'name="seen" value="([^"]+)"', page)
            assert seen
            form = {"csrf": await csrf_of(http, "/nodes/n4"), "order": order.order.id, "next": "/orders"}
            await http.post("/operate", data=form | {"command": "approve", "seen": '"other"'})
            assert "has changed since you looked" in (await http.get("/orders")).text
            tag = seen.group(1).replace("&#34;", '"')
            await http.post("/operate", data=form | {"command": "approve", "seen": tag})
            assert "is approved" in (await http.get("/orders")).text
            await until(lambda: house.world.nodes["n4"].drained)

    run(work)


def test_an_order_that_takes_two_people_says_who_has_approved_it(tmp_path: Path) -> None:
    """On its own page, on its incident's and on the overview; an approval is withdrawn by who gave it."""

    async def work() -> None:
        policy = 'mode = "advise"\n[trust]\napprovals = 2\n'
        async with served(tmp_path, policy=policy) as house, house.browser() as http:
            await house.fault("n4")
            await until(lambda: any(one.status == "proposed" for one in house.cockpit.fleet.waiting.values()))
            order = next(one.order for one in house.cockpit.fleet.waiting.values() if one.status == "proposed")
            page = f"/orders/{order.id}"
            assert "0 of 2 approvals" in (await http.get(page)).text
            form = {"csrf": await csrf_of(http, page), "order": order.id, "next": "/orders"}
            await http.post("/operate", data=form | {"command": "approve"})
            assert "has 1 of 2 approvals, and waits for more" in (await http.get("/orders")).text
            for where in (page, f"/incidents/{order.incident}", "/"):
                assert "1 of 2 approvals: " in (await http.get(where)).text
            await http.post("/operate", data=form | {"command": "approve"})
            assert "has approved it already" in (await http.get("/orders")).text
            await http.post("/operate", data=form | {"command": "withdraw"})
            assert "0 of 2 approvals" in (await http.get(page)).text
            assert "token " in (await http.get("/audit")).text

    run(work)


def test_the_overview_counts_all_orders_that_wait(tmp_path: Path) -> None:
    """It shows the first of them; the number and the link speak of all."""

    async def work() -> None:
        count = pages.SHOWN + 2
        async with (
            served(tmp_path, policy='mode = "advise"', nodes=nodes_of(5 * count)) as house,
            house.browser() as http,
        ):
            for number in range(3, count + 3):  # the job runs on the first two
                await house.fault(f"n{number}", number=number)
            await until(lambda: len(house.cockpit.fleet.proposed) == count)
            shown = (await http.get("/")).text
            assert f"<span>waiting for your word</span><b>{count}</b>" in shown
            assert f"All {count} orders that wait" in shown

    run(work)


def test_a_policy_is_checked_and_shown_before_it_holds(tmp_path: Path) -> None:
    """A wrong policy is named with its key; a right one shows its difference and holds only after the second step."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser() as http, house.browser(Role.VIEWER) as viewer:
            form = {"csrf": await csrf_of(http, "/settings")}
            answer = await http.post("/settings", data=form | {"deed": "check", "toml": 'mdoe = "advise"\n'})
            assert "mdoe" in answer.text
            assert "Let it hold" not in answer.text
            good = form | {"toml": 'mode = "advise"\n'}
            answer = await http.post("/settings", data=good | {"deed": "check"})
            assert "+mode = &#34;advise&#34;" in answer.text
            assert house.cockpit.board.mode == "act"
            blank = await http.post("/settings", data=good | {"deed": "apply", "based_on": "0"})
            assert "say in a few words why" in blank.text
            assert house.cockpit.board.mode == "act"
            applied = await http.post("/settings", data=good | {"deed": "apply", "based_on": "0", "why": "careful"})
            assert applied.status_code == 303
            assert house.cockpit.board.mode == "advise"
            again = {"deed": "apply", "toml": 'mode = "observe"\n', "based_on": "0", "why": "x"}
            await http.post("/settings", data=form | again)
            assert house.cockpit.board.mode == "advise"
            page = (await viewer.get("/settings")).text
            assert "<textarea" not in page
            secret = CSRF.search(page)
            assert secret
            await viewer.post("/settings", data=again | {"csrf": secret.group(1)})
            assert house.cockpit.board.mode == "advise"
            await http.post("/operate", data=form | {"command": "set_mode", "value": "observe", "why": "dry run"})
            assert house.cockpit.board.mode == "observe"

    run(work)


def test_addresses_cannot_leave_the_cockpit(tmp_path: Path) -> None:
    """No path leads to a file outside the list, and no log-in leads to another site."""

    async def work() -> None:
        async with served(tmp_path) as house:
            for path in (
                "/static/../cockpit.py", "/static/%2e%2e/board.py", "/static/..%2f..%2fauth.py", "/static//etc/passwd",
                "/static/cockpit.css%00.html", "/static/layout.html", "/static/", "/nodes/../../../etc/passwd",
            ):  # fmt: skip
                status, body = await raw(house.url, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert status in {303, 400, 404, 403}, (path, status)
                assert b"import" not in body
                assert b"root:" not in body
            async with house.browser(None) as http:
                for target in (
                    "https://evil.example/",
                    "//evil.example",
                    "/\\evil.example",
                    "javascript:alert(1)",
                    "/a\r\nX: y",
                ):
                    answer = await http.post("/login", data={"token": TOKENS[Role.VIEWER], "next": target})
                    assert answer.headers["location"] == "/", target

    run(work)


def test_a_token_stands_in_no_address_page_or_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither redirects nor pages nor the log repeat a token, right or wrong."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(None) as http:
            for token in (TOKENS[Role.OPERATOR], "hft_wrong_but_secret"):
                answer = await http.post("/login", data={"token": token})
                assert token not in answer.text + str(answer.headers) + str(answer.url)
                for path in PAGES:
                    page = await http.get(path)
                    assert token not in page.text + str(page.headers)
            said = capsys.readouterr()
            assert "hft_" not in said.out + said.err

    run(work)


def test_guessing_tokens_is_slowed_and_forms_have_a_size(tmp_path: Path) -> None:
    """After ten wrong tokens the right one waits, too; a form that is too large is refused."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(None) as http:
            # A line of its own: the server closes it, maybe while the rest of the form is still under way.
            async with house.browser(None) as other:
                with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    big = await other.post("/login", data={"token": "x" * 2_000_000})
                    assert big.status_code in {400, 413}
            for _ in range(10):
                assert (await http.post("/login", data={"token": "hft_no"})).status_code == 403
            assert (await http.post("/login", data={"token": TOKENS[Role.VIEWER]})).status_code == 403

    run(work)


def test_a_slow_request_holds_nobody_up(tmp_path: Path) -> None:
    """A request whose body comes in drops does not keep others from their pages."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser() as http:
            host, port = house.url.removeprefix("http://").split(":")
            _reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\ntok")
            await writer.drain()
            async with asyncio.timeout(200):
                assert (await http.get("/")).status_code == 200
            writer.close()

    run(work)


def test_without_tokens_everyone_is_local_and_forms_still_are_ours(tmp_path: Path) -> None:
    """On loopback without tokens no log-in is asked for, yet another site's form is refused."""

    async def work() -> None:
        async with served(tmp_path, tokens=False) as house, house.browser(None) as http:
            page = await http.get("/nodes/n3")
            assert page.status_code == 200
            secret = CSRF.search(page.text)
            assert secret
            deed = {"node": "n3", "command": "drain", "why": "test"}
            assert (await http.post("/operate", data=deed)).status_code == 403
            assert (await http.post("/operate", data=deed | {"csrf": secret.group(1)})).status_code == 303
            assert (await house.controller.journal.events(kind="operator_command"))[0].who == "local"

    run(work)


def test_search_finds_by_fingerprint_and_says_what_helped(tmp_path: Path) -> None:
    """The same trouble on another node is found by its fingerprint."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            await house.fault("n4", fingerprint="nvidia.xid.74:abcdef")
            await house.fault("n5", fingerprint="log.other:123", rule="log.other", summary="other")
            await until(lambda: len(house.cockpit.fleet.incidents) == 2)
            found = (await http.get("/incidents", params={"q": "abcdef"})).text
            assert "/nodes/n4" in found
            assert "/nodes/n5" not in found

    run(work)


def test_fleet_and_board_are_the_same_loaded_and_followed(tmp_path: Path) -> None:
    """What a restarted cockpit reads from the journal is what the first one had from events."""

    async def work() -> None:
        async with served(tmp_path, replaces=True) as house:
            for number, node in enumerate(("n1", "n3", "n5")):
                await house.fault(node, number=number)
            command = e.OperatorCommand(id="c1", at=1.0, command=e.Command.SET_MODE, who="mei", why="x", value="advise")
            await house.controller.submit(command)
            await until(lambda: not any(o.status == "pending" for o in house.cockpit.fleet.waiting.values()))
            fleet, first = house.cockpit.fleet, house.cockpit.board
            while True:  # what is stored while it is read would be in one and not in the other
                seq = await house.controller.journal.last_seq()
                again = Fleet()
                await again.load(house.controller.journal)
                other = Board(again)
                await other.load(house.controller.journal)
                if fleet.seq == seq == await house.controller.journal.last_seq():
                    break
                await asyncio.sleep(0.01)
            assert again.nodes == fleet.nodes
            assert again.jobs == fleet.jobs
            assert list(again.incidents.values()) == list(fleet.incidents.values())
            assert [one.id for one in other.deeds] == [one.id for one in first.deeds]
            assert again.waiting == fleet.waiting
            assert again.brakes == fleet.brakes
            assert other.mode == first.mode == "advise"

    run(work)


def test_what_another_policy_would_have_done(tmp_path: Path) -> None:
    """An incident is replayed under a preset, and the page shows both sides."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            await house.fault("n1")
            incident = house.cockpit.fleet.open_incidents()[0].id
            page = await http.get(f"/incidents/{incident}", params={"policy": "hyperpod-slurm"})
            assert page.status_code == 200
            assert "under hyperpod-slurm" in page.text or "The same: no order" in page.text
            assert (await http.get(f"/incidents/{incident}", params={"policy": "nobody's"})).status_code == 404

    run(work)


async def raw(url: str, request: str) -> tuple[int, bytes]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), family=socket.AF_INET)
    writer.write(request.encode())
    await writer.drain()
    async with asyncio.timeout(200):
        answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1]), answer


def test_a_job_whose_id_was_used_before_has_a_page(tmp_path: Path) -> None:
    """`1778#2` is reached by its link."""

    async def work() -> None:
        job = the_job()
        second = type(job)(key=JobKey(KEY.cluster, "9", 2), name="again", state=job.state, nodes=("n3",))
        async with served(tmp_path, jobs=[second]) as house, house.browser(Role.VIEWER) as http:
            await until(lambda: "9#2" in house.cockpit.fleet.jobs)
            assert "/jobs/9%232" in (await http.get("/jobs")).text
            assert (await http.get("/jobs/9%232")).status_code == 200
            chart = await http.get("/jobs/9%232?chart=steps")
            assert chart.headers["content-type"].startswith("application/json")
            assert (await http.get("/jobs/9%232?chart=ranks")).status_code == 200
            assert (await http.get("/jobs/9%232?chart=loss")).json()["data"] == []
            assert (await http.get("/nodes/n3?chart=temperature")).status_code == 200

    run(work)


def test_figures_are_gathered_behind_the_page(tmp_path: Path) -> None:
    """The efficiency page is there at once, fills itself, and its price changes the money."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            await house.fault()
            async with asyncio.timeout(200):
                while "Cost and return" not in (page := (await http.get("/efficiency?price=2.5")).text):
                    await asyncio.sleep(0.05)
            check(page)
            assert page.count("no price given") <= 1, "only what Holdfast itself costs is not asked for here"
            assert (await http.get("/efficiency?days=abc&month=2026-13&price=-1")).status_code == 200
            assert (await http.get("/efficiency?chart=times")).status_code == 200
            assert (await http.get("/efficiency?chart=trend")).status_code == 404

    run(work)
