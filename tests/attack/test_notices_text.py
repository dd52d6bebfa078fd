"""A job's user writes names and log lines that become notices: nobody is called by them, no link is dressed, no header made.

Payloads are those that the services obey: Slack's and Google Chat's tags, mentions of Discord, Mattermost and Zulip,
links of Markdown, tags of HTML mail, line breaks of headers, control characters.
"""

from __future__ import annotations

import asyncio
import json
from email import message_from_string
from types import MappingProxyType

import pytest

from attack_fixture import Attempt
from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.adapters.notify import routing, services
from holdfast.adapters.notify.routing import Facts, Message, render
from holdfast.adapters.notify.services import AppriseDeliverer
from holdfast.model.evidence import Severity
from holdfast.model.orders import Notify

USER = "A user of the cluster whose names and log lines people read"
ATTENTION = "people's attention"
TOKEN = "a" * 24
CHATS = {
    "slack": f"slack://T1JJ3T3L2/A1BRTD4JD/{TOKEN}/%23general",
    "slack's bot": "slack://xoxb-1234-1234-4ddbc191d40ee098cbaae6f3523ada2d/#general",
    "slack's blocks": f"slack://T1JJ3T3L2/A1BRTD4JD/{TOKEN}/%23general?blocks=yes",
    "discord": f"discord://4174216298/{TOKEN}",
    "mattermost": f"mmost://chat.example/{TOKEN}",
    "google chat": "gchat://space/key/token",
    "zulip": "zulip://bot@org/b0UKVWCZSkDzOi3bwdzwgWZtZHwuVkKE/stream",
}
CALLS = {
    "slack": ("<!channel>", "<!here|x>", "<@U123ABC>", "<https://evil.example|sign in>", "!channel>", "@U123ABC>"),
    "slack's bot": ("<!everyone>", "<@W1>"),
    "slack's blocks": ("<!channel>", "<https://evil.example|sign in>", "<#C1>"),
    "discord": ("@everyone", "@here", "<@123>", "<@&1>", "[sign in](https://evil.example)"),
    "mattermost": ("@channel", "@all", "@root", "[sign in](https://evil.example)"),
    "google chat": ("<users/all>", "<https://evil.example|sign in>"),
    "zulip": ("@**all**", "@_**mei**", "[sign in](https://evil.example)"),
}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Bodies of the requests that services make, as text."""
    bodies: list[str] = []

    class Answer:
        status_code = 200
        content = b"ok"
        headers = MappingProxyType({})
        text = "ok"

        def json(self) -> dict:
            return {"ok": True, "ts": "1"}

    def post(url, data=None, **more):
        body = data if data is not None else more.get("json")
        bodies.append(body if isinstance(body, str) else json.dumps(body))
        answer = Answer()
        answer.content = b"ok" if "hooks.slack" in url else b'{"ok": true, "ts": "1"}'
        return answer

    monkeypatch.setattr("requests.post", post)
    monkeypatch.setattr("requests.request", lambda _method, url, **more: post(url, **more))
    return bodies


def plainly(_service: str, _mention: str, message: Message) -> dict:
    """What goes to a service where its text is handed on as it is."""
    return {"title": message.title, "body": message.text}


def deliver(destination: Destination, title: str, text: str) -> None:
    asyncio.run(AppriseDeliverer().deliver(destination, Message("i1", Severity.ERROR, title, text), ""))


@pytest.mark.attempt(actor=USER, asset=ATTENTION, removed="adapters.notify.services._as_text")
@pytest.mark.parametrize(("chat", "call"), [(chat, call) for chat, calls in CALLS.items() for call in calls])
def test_a_log_line_calls_nobody(attempt: Attempt, sent: list[str], chat: str, call: str) -> None:
    """Print a mention, a link with another text or a tag of the chat's markup."""
    attempt.without(services, "_as_text", plainly)
    deliver(Destination(name="chat", url=CHATS[chat]), "t", f"Xid 79 {call} on n1")
    body = json.loads(sent[-1])
    text = json.dumps(body, ensure_ascii=False)
    attempt.judge(succeeded=call in text or f"<{call}" in text)


@pytest.mark.attempt(actor=USER, asset=ATTENTION, removed="adapters.notify.services._as_text")
@pytest.mark.parametrize(
    ("chat", "call"), [("discord", "@everyone"), ("mattermost", "@all"), ("google chat", "<users/all>")]
)
def test_a_title_calls_nobody(attempt: Attempt, sent: list[str], chat: str, call: str) -> None:
    """Name a job so."""
    attempt.without(services, "_as_text", plainly)
    deliver(Destination(name="chat", url=CHATS[chat]), f"{call} is requeued", "x")
    attempt.judge(succeeded=call in json.dumps(json.loads(sent[-1]), ensure_ascii=False))


@pytest.mark.parametrize("call", CALLS["slack"])
def test_the_sites_own_mention_is_live_and_a_users_beside_it_is_not(sent: list[str], call: str) -> None:
    """`mention` is the site's markup; the log line behind it stays text."""
    deliver(Destination(name="chat", url=CHATS["slack"], mention="<!here>"), "t", f"x {call} y")
    text = json.loads(sent[-1])["attachments"][0]["text"]
    assert text.startswith("<!here> x ")
    assert not [one for one in ("<!", "<@", "<http") if one in text.removeprefix("<!here>")]


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Mails as a server would get them."""
    got: list[str] = []

    class Smtp:
        def __init__(self, *_where, **_named) -> None:
            self.esmtp_features = {}

        def sendmail(self, _sender, _to, text, **_named) -> None:
            got.append(text if isinstance(text, str) else text.decode())

        def quit(self) -> None:
            pass

    monkeypatch.setattr("smtplib.SMTP", Smtp)
    return got


MAIL = "mailto://relay.example?from=hold@x.example&to=ops@x.example&mode=insecure"


@pytest.mark.attempt(actor=USER, asset=ATTENTION, removed="adapters.notify.services._as_text")
@pytest.mark.parametrize(
    "tag",
    [
        "<img src=https://evil.example/x.png>",
        "<a href='https://evil.example'>sign in</a>",
        "<style>p{display:none}</style>",
    ],
)
def test_a_mail_has_no_tags_of_others(attempt: Attempt, mails: list[str], tag: str) -> None:
    """Print a picture, a dressed link or a style into an HTML mail."""
    attempt.without(services, "_as_text", plainly)
    deliver(Destination(name="mail", url=MAIL), "t", f"Xid 79 {tag} on n1")
    parts = [
        part.get_payload(decode=True).decode()
        for part in message_from_string(mails[-1]).walk()
        if part.get_content_type() == "text/html"
    ]
    attempt.judge(succeeded=any(tag in part for part in parts))


HEADERS = (
    "x\r\nBcc: evil@x.example",
    "x\nFrom: ceo@x.example",
    "x\rTo: all@x.example",
    "x\r\n\r\n<b>body</b>",
    "x\u2028Bcc: e@x",
)


@pytest.mark.attempt(actor=USER, asset=ATTENTION, removed="adapters.notify.routing.clean")
@pytest.mark.parametrize("title", [*HEADERS, "x\x1b[2Jy", "x\u202egnp.exe", "x\x00y", "x\x85Bcc: e@x"])
def test_a_title_is_one_line_of_text(attempt: Attempt, title: str) -> None:
    """Put line breaks, escapes or marks of direction into a title, which becomes a mail's subject."""
    attempt.without(routing, "clean", lambda text: text)
    notice = Notify(id="o", cause=1, topic="i", title=title, text="x")
    made = render(Destination(name="a", url="x"), NotifyConfig(), notice, Facts()).title
    attempt.judge(succeeded=not made.isprintable())


@pytest.mark.attempt(actor=USER, asset=ATTENTION, removed="adapters.notify.routing.printable")
@pytest.mark.parametrize("text", ["x\x1b]0;owned\x07", "x\u202egnp.exe", "x\x00", "x\rXid 79 on n9"])
def test_a_text_has_no_control_characters(attempt: Attempt, text: str) -> None:
    """Put escapes, marks of direction or a carriage return into a text, which people read in a terminal's mail reader."""
    attempt.without(routing, "printable", lambda said: said)
    notice = Notify(id="o", cause=1, topic="i", title="t", text=f"{text} end")
    made = render(Destination(name="a", url="x"), NotifyConfig(), notice, Facts()).text
    attempt.judge(succeeded=not made.replace("\n", "").isprintable())


@pytest.mark.parametrize("title", HEADERS)
@pytest.mark.parametrize("topic", ["i1", "i1\r\nBcc: evil@x.example"])
def test_a_mails_headers_are_ours(mails: list[str], title: str, topic: str) -> None:
    """Whatever title, topic and text hold, a mail has the same headers, one sender, one receiver and the same parts."""
    heads = []
    for said, matter in (("plain", "i1"), (title, topic)):
        notice = Notify(
            id="o", cause=1, topic=matter, title=said, text=f"{said}\n--==boundary\nContent-Type: text/html"
        )
        message = render(Destination(name="a", url="x"), NotifyConfig(), notice, Facts())
        asyncio.run(AppriseDeliverer().deliver(Destination(name="mail", url=MAIL), message, ""))
        mail = message_from_string(mails[-1])
        heads.append((sorted(mail.keys()), mail["From"], mail["To"], [one.get_content_type() for one in mail.walk()]))
    assert heads[0] == heads[1]


@pytest.mark.parametrize("text", ['","topic":"x', "\x00", '{"a":1}', "}\n{"])
def test_a_webhooks_fields_are_ours(sent: list[str], text: str) -> None:
    """A text with quotes and brackets stays one field of the JSON."""
    deliver(Destination(name="hook", url="json://hook.example/"), "t", f"a{text}b")
    body = json.loads(sent[-1])
    assert (body["message"], body["topic"], body["title"]) == (f"a{text}b", "i1", "t")
