"""How a command finds its settings and its controller, and what it says when it finds none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Holdfast
from holdfast.errors import ConfigError, LinkError, RefusedError
from holdfast.os.tls import TlsFiles, Trust
from holdfast.os.unix_sockets import NAME, socket_address
from holdfast.wiring import settings as wiring_settings
from holdfast.wiring import settings_places
from holdfast.wiring.settings import find_controller, load_settings, tls_files
from holdfast.wiring.settings_places import places


def a_cluster(folder: Path, url: str = "http://127.0.0.1:1", token: str = "hft_x") -> Path:
    (folder / "controller").mkdir(parents=True)
    (folder / "controller" / "controller.json").write_text(json.dumps({"url": url, "pid": 1, "version": "9"}))
    (folder / "controller" / "token").write_text(token + "\n")
    return folder


def test_places_are_those_of_the_docs(tmp_path: Path) -> None:
    """Option, environment, working folder, the user's folder, the site's folder."""
    assert places(Path("x.toml"), environ={"HOLDFAST_CONFIG": "y.toml"}) == [Path("x.toml")]
    assert places(None, environ={"HOLDFAST_CONFIG": "y.toml"}) == [Path("y.toml")]
    assert places(None, environ={}) == [
        Path("holdfast.toml"),
        Path("~/.config/holdfast/holdfast.toml").expanduser(),
        Path("/etc/holdfast/holdfast.toml"),
    ]


def test_a_user_without_a_home_has_no_file_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a number that no user bears, and no HOME: the other places are looked at."""

    def no_home(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert places(None, environ={}) == [Path("holdfast.toml"), Path("/etc/holdfast/holdfast.toml")]


def test_the_first_file_wins(holdfast: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are not merged: the nearest one alone is read."""
    for folder, name in (
        (tmp_path / "no-site", "site"),
        (tmp_path / "no-config" / "holdfast", "user"),
        (Path(), "here"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "holdfast.toml").write_text(f'controller = "http://{name}:1"\n')
    assert load_settings().config.controller == "http://here:1"
    Path("holdfast.toml").unlink()
    assert load_settings().config.controller == "http://user:1"
    (tmp_path / "no-config" / "holdfast" / "holdfast.toml").unlink()
    assert find_controller().url == "http://site:1"
    monkeypatch.setenv("HOLDFAST_CONTROLLER", "http://environment:1/")
    assert find_controller().url == "http://environment:1"
    assert find_controller(url="http://option:1").url == "http://option:1"
    assert find_controller(cluster_dir=a_cluster(tmp_path / "c", "http://folder:1")).url == "http://folder:1"


def placed(text: str, *, mode: int = 0o644, owner: int | None = None, folder: Path = Path()) -> Path:
    """A holdfast.toml in a folder; another user's only where the test may give files away."""
    file = folder / "holdfast.toml"
    file.unlink(missing_ok=True)
    file.write_text(text)
    file.chmod(mode)
    if owner is not None:
        os.chown(file, owner, owner)
    return file


STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
EVIL = 'controller = "http://evil:1"\n'


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param(
            "owner",
            "it belongs to another user (uid 54321): copy it to a folder of your own, or name it by --config",
            marks=as_root,
        ),
        pytest.param(
            "link",
            "its link belongs to another user (uid 54321): copy it to a folder of your own, or name it by --config",
            marks=as_root,
        ),
        pytest.param(
            "target",
            "it belongs to another user (uid 54321): copy it to a folder of your own, or name it by --config",
            marks=as_root,
        ),
        ("world", "others may write it: chmod go-w it, or name it by --config"),
        ("group", "others may write it: chmod go-w it, or name it by --config"),
        ("pipe", "it is no ordinary file: remove it"),
    ],
)
def test_a_file_of_the_working_folder_counts_only_when_it_is_mine_alone(
    holdfast: Holdfast, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, why: str
) -> None:
    """What another user placed or may write is passed over with one sentence, and the next place is read."""
    own = tmp_path / "no-config" / "holdfast"
    own.mkdir(parents=True)
    placed('controller = "http://mine:1"\n', folder=own)
    Path().chmod(0o1777)
    file = Path("holdfast.toml")
    match how:
        case "owner":
            placed(EVIL, owner=STRANGER)
        case "world" | "group":
            placed(EVIL, mode=0o666 if how == "world" else 0o664)
        case "pipe":
            os.mkfifo(file)
        case "link" | "target":
            (tmp_path / "far").mkdir()
            file.symlink_to(placed(EVIL, folder=tmp_path / "far", owner=STRANGER if how == "target" else None))
            if how == "link":
                os.lchown(file, STRANGER, STRANGER)
    assert find_controller().url == "http://mine:1"
    assert load_settings().config.controller == "http://mine:1"
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(f"{file.absolute()} is passed over: ")[2].startswith(why) for line in said] == [True]
    if how != "pipe":
        assert find_controller(config=file).url == "http://evil:1"  # named: the user's own word


def test_a_file_of_mine_in_tmp_counts(holdfast: Holdfast, capsys: pytest.CaptureFixture[str]) -> None:
    """In a sticky folder nobody else can take my file away and put another one of mine in its place."""
    Path().chmod(0o1777)
    placed('controller = "http://mine:1"\n')
    assert find_controller().url == "http://mine:1"
    Path("holdfast.toml").rename("kept.toml")
    Path("holdfast.toml").symlink_to("kept.toml")
    assert find_controller().url == "http://mine:1"
    assert capsys.readouterr().err == ""


def test_an_address_gets_no_token_of_another_source(
    holdfast: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was looked for, in the working folder above all, learns no token but its own."""
    own = tmp_path / "no-config" / "holdfast"
    own.mkdir(parents=True)
    for folder in (tmp_path, own, Path()):
        (folder / "token").write_text(f"hft_{folder.name or 'here'}\n")
    # the working folder's file, and a token from the environment
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(tmp_path / "token"))
    placed(EVIL)
    found = find_controller()
    assert (found.url, found.token) == ("http://evil:1", "")
    assert "--url" in found.no_token
    assert find_controller(config=Path("holdfast.toml")).token == f"hft_{tmp_path.name}"  # both named by the user
    assert find_controller(url="http://typed:1").token == f"hft_{tmp_path.name}"
    placed(EVIL + 'token_file = "token"\n')
    assert find_controller().token == "hft_here"
    monkeypatch.delenv("HOLDFAST_TOKEN_FILE")
    # its own words may point at a token that lies elsewhere, by path or by link
    for elsewhere in (str(own / "token"), "planted"):
        Path("planted").unlink(missing_ok=True)
        Path("planted").symlink_to(own / "token")
        placed(EVIL + f'token_file = "{elsewhere}"\n')
        with pytest.raises(RefusedError, match="put the token there, or name both yourself"):
            find_controller()
    # a file that was looked for keeps its token for its own address
    Path("holdfast.toml").unlink()
    placed('controller = "http://mine:1"\ntoken_file = "token"\nca_file = "ca.pem"\n', folder=own)
    assert find_controller().token == find_controller(url="http://mine:1/").token == "hft_holdfast"
    other = find_controller(url="http://typed:1")
    assert (other.token, other.trust) == ("", Trust())
    assert "set HOLDFAST_TOKEN_FILE for this one" in other.no_token
    assert find_controller(url="http://typed:1", config=own / "holdfast.toml").token == "hft_holdfast"
    placed('token_file = "token"\n', folder=own)
    assert find_controller(url="http://typed:1").token == "hft_holdfast"  # it is for no address in particular


def test_the_token_of_a_clusters_folder_lies_in_it(holdfast: Holdfast, tmp_path: Path) -> None:
    """A folder of somebody else that links to my token does not have it sent to its address."""
    folder = a_cluster(tmp_path / "theirs", "http://evil:1")
    (tmp_path / "token").write_text("hft_mine\n")
    (folder / "controller" / "token").unlink()
    (folder / "controller" / "token").symlink_to(tmp_path / "token")
    with pytest.raises(RefusedError, match="lies outside"):
        find_controller(cluster_dir=folder)


def test_paths_of_the_file_are_relative_to_it(holdfast: Holdfast, tmp_path: Path) -> None:
    """A token file beside holdfast.toml is found from everywhere; so is a cluster's folder."""
    file = tmp_path / "site.toml"
    file.write_text('controller = "http://site:1"\ntoken_file = "token"\n')
    (tmp_path / "token").write_text("hft_secret\n")
    assert find_controller(config=file).token == "hft_secret"
    a_cluster(tmp_path / "lab", token="hft_lab")
    file.write_text('dir = "lab"\n')
    assert find_controller(config=file).token == "hft_lab"


def test_no_controller_is_one_sentence(holdfast: Holdfast) -> None:
    """Exit code 69, and every way to name one."""
    for command in (["jobs"], ["node", "drain", "node01", "--why", "test"], ["approve", "o-1"], ["report"]):
        ran = holdfast(*command)
        assert ran.code == 69
        assert ran.sentence == (
            "no controller is named: give --dir CLUSTER_DIR or --url URL, set HOLDFAST_CONTROLLER, or write "
            '`controller = "http://..."` into holdfast.toml'
        )


def test_the_default_embedded_cluster_is_hinted_at(
    holdfast: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not used unasked, but named, so that it can be copied."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = a_cluster(tmp_path / "holdfast" / "clusters" / "local")
    assert holdfast("jobs").sentence.endswith(f"; an embedded cluster is at --dir {folder}")


def test_a_wrong_key_names_file_line_and_the_nearest(holdfast: Holdfast) -> None:
    """Exit code 78."""
    Path("holdfast.toml").write_text('# settings\ncontroler = "http://127.0.0.1:1"\n')
    ran = holdfast("jobs")
    assert ran.code == 78
    assert ran.sentence.startswith("holdfast.toml:2: ")
    assert "controler" in ran.sentence
    assert '"controller"' in ran.sentence


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        (["--config", "no.toml"], 78, "no.toml: there is no such file"),
        (["--dir", "no-such"], 1, "--dir: there is no folder no-such"),
        (["--dir", "."], 69, "no controller runs in ."),
        (["--dir", ".", "--url", "http://x:1"], 2, "--dir and --url name two controllers"),
        (["--url", "x:1"], 2, "--url: 'x:1' is not an address"),
        (["--url", "http://127.0.0.1:1"], 69, "no answer from a controller at http://127.0.0.1:1 (--url)"),
        (["--journal", "x.db", "--url", "http://127.0.0.1:1"], 2, "--journal reads a file"),
        (["--journal", "x.db"], 1, "there is no journal x.db"),
        (["--journal", "oracle://x"], 2, "journal URL of kind 'oracle' is not known here"),
    ],
)
def test_every_wrong_way_is_one_sentence(argv: list[str], code: int, part: str, holdfast: Holdfast) -> None:
    """Each with its own exit code; no journal is made by looking for one."""
    ran = holdfast("jobs", *argv)
    assert (ran.code, ran.out) == (code, "")
    assert part in ran.sentence
    assert list(Path().iterdir()) == []


def test_a_dead_controller_of_a_folder(holdfast: Holdfast, tmp_path: Path) -> None:
    """controller.json of a controller that has gone: the sentence names address and folder."""
    ran = holdfast("jobs", "--dir", a_cluster(tmp_path / "lab"))
    assert ran.code == 69
    assert "no answer from a controller at http://127.0.0.1:1 (--dir " in ran.sentence


@pytest.mark.parametrize(("text", "part"), [("{", "is not a controller's file"), ('{"pid": 3}', "`url`")])
def test_a_damaged_controller_file(text: str, part: str, holdfast: Holdfast, tmp_path: Path) -> None:
    """Named, with exit code 78."""
    (a_cluster(tmp_path / "lab") / "controller" / "controller.json").write_text(text)
    ran = holdfast("jobs", "--dir", tmp_path / "lab")
    assert ran.code == 78
    assert "controller.json: " in ran.sentence
    assert part in ran.sentence


@pytest.mark.parametrize(
    ("content", "part"), [(None, "there is no such token file"), ("\n", "is empty"), ("\udcff", "is not a token file")]
)
def test_a_wrong_token_file(
    content: str | None, part: str, holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named, with exit code 78."""
    if content is not None:
        Path("token").write_bytes(content.encode(errors="surrogateescape"))
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", "token")
    ran = holdfast("jobs", "--url", "http://127.0.0.1:1")
    assert ran.code == 78
    assert ran.sentence.startswith("token: ")
    assert part in ran.sentence


@pytest.mark.parametrize("damage", ["text", "torn", "other", "empty"])
def test_what_is_no_journal_is_one_sentence(damage: str, holdfast: Holdfast, journal: Path, tmp_path: Path) -> None:
    """Not a database, torn at its very head, somebody else's database, empty: nothing is written into it."""
    import sqlite3

    path = tmp_path / "damaged.db"
    if damage == "text":
        path.write_text("this is no journal " * 100)
    elif damage == "torn":
        whole = bytearray(journal.read_bytes())
        whole[100:4096] = b"\x55" * (4096 - 100)
        path.write_bytes(whole)
    elif damage == "other":
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE t (x)")
        other.close()
    else:
        path.touch()
    for command in ("jobs", "report"):
        ran = holdfast(command, "--journal", path)
        assert ran.code == (1 if damage == "empty" else 70)
        assert str(path) in ran.sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")
@pytest.mark.parametrize("what", ["journal", "token", "folder"])
def test_no_permission_is_one_sentence(what: str, journal: Path, tmp_path: Path) -> None:
    """Somebody else's journal, token or cluster folder: exit code 77 and whom to ask."""
    code = (
        "import contextlib, io, os, sys\n"
        "from holdfast.cli.main import app, main\n"
        "import holdfast.cli.remote\n"
        # Python itself may lie where the other user cannot read: everything is loaded by a first, good run.
        f"with contextlib.redirect_stdout(io.StringIO()): app(['jobs', '--journal', {str(journal)!r}], standalone_mode=False)\n"
        "os.setgid(65534); os.setuid(65534); main()"
    )
    folder = a_cluster(tmp_path / "lab")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    if what == "journal":
        target = ["--journal", str(journal)]
    elif what == "token":
        (folder / "controller" / "token").chmod(0o600)
        environment["HOLDFAST_TOKEN_FILE"] = str(folder / "controller" / "token")
        target = ["--url", "http://127.0.0.1:1"]
    else:
        (folder / "controller").chmod(0o700)
        target = ["--dir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", code, "jobs", *target],
        capture_output=True, text=True, env=environment, timeout=60, cwd="/",
    )  # fmt: skip
    assert done.returncode == 77, done.stderr
    assert "may not be" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_site_folder_is_etc() -> None:
    """What the other tests replace."""
    assert Path("/etc/holdfast") == settings_places.SITE_FOLDER


def test_trust_is_of_the_file_below_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ca_file`, `cert_file` and `plain_http` hold for the file's own address; the environment's hold for every one."""
    text = 'controller = "https://c:1"\nca_file = "ca.pem"\ncert_file = "/etc/me.pem"\nplain_http = true\n'
    file = placed(text, folder=tmp_path)
    assert find_controller(config=file).trust == Trust(tmp_path / "ca.pem", Path("/etc/me.pem"), plain_http=True)
    monkeypatch.setenv("HOLDFAST_CA_FILE", "/run/ca.pem")
    assert find_controller(config=file).trust == Trust(Path("/run/ca.pem"), Path("/etc/me.pem"), plain_http=True)
    assert find_controller(url="https://other:1").trust == Trust(Path("/run/ca.pem"))
    monkeypatch.setenv("HOLDFAST_CERT_FILE", "/run/me.pem")
    monkeypatch.setenv("HOLDFAST_PLAIN_HTTP", "1")
    assert find_controller(url="http://other:1").trust == Trust(
        Path("/run/ca.pem"), Path("/run/me.pem"), plain_http=True
    )


def test_munge_is_for_the_files_own_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[slurm] munge` has commands log in by it at the file's controller; a folder of --dir has tokens."""
    text = 'controller = "https://c:1"\n[slurm]\nmunge = true\n'
    assert find_controller(config=placed(text, folder=tmp_path)).trust == Trust(munge="")
    file = placed(f'{text}munge_socket = "/run/m"\n', folder=tmp_path)
    assert find_controller(config=file).trust == Trust(munge="/run/m")
    assert find_controller(url="https://other:1").trust == Trust()
    monkeypatch.setenv("HOLDFAST_MUNGE", "1")
    assert find_controller(url="https://other:1").trust == Trust(munge="")
    folder = a_cluster(tmp_path / "c", "https://127.0.0.1:1")
    assert find_controller(cluster_dir=folder).trust == Trust()


def test_a_local_socket_needs_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--dir` goes by the folder's socket while it answers, else with the token; what names nothing, to this machine's."""
    folder = a_cluster(tmp_path / "c")
    path = folder / "controller" / NAME
    monkeypatch.setattr(wiring_settings, "SITE_SOCKET", path)
    local = f"unix:{path}"
    assert find_controller(url=local).url == local
    with pytest.raises(LinkError, match="no controller is named"):
        find_controller()
    with socket.socket(socket.AF_UNIX) as server, socket_address(path) as address:
        server.bind(address)
        server.listen()
        assert (find_controller().url, find_controller().said_by) == (local, "this machine's controller")
        found = find_controller(cluster_dir=folder)
        assert (found.url, found.token) == (local, "")
        path.parent.chmod(0o777)
        with pytest.raises(RefusedError, match="could be exchanged by others"):
            find_controller(cluster_dir=folder)
        path.parent.chmod(0o755)
    assert find_controller(cluster_dir=folder).token == "hft_x"
    with pytest.raises(LinkError, match="left it behind: start the controller"):
        find_controller()


@pytest.mark.parametrize("line", ["jobs", "node show n1", "top --once", "approve o1"])
@pytest.mark.parametrize("is_left", [False, True])
def test_a_socket_at_which_nobody_answers_is_one_sentence(
    holdfast: Holdfast, tmp_path: Path, line: str, *, is_left: bool
) -> None:
    """Its path and what to do, by every command that asks a controller; no error of the library."""
    path = tmp_path / NAME
    if is_left:
        with socket.socket(socket.AF_UNIX) as server, socket_address(path) as address:
            server.bind(address)
    ran = holdfast(*line.split(), "--url", f"unix:{path}")
    assert ran.code == 69
    assert ran.sentence.startswith(f"nobody answers at the socket {path}: ")
    assert "start the controller" in ran.sentence


def test_a_folder_brings_its_own_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --dir, the controller's own ca.pem is trusted, unless another one is named."""
    folder = a_cluster(tmp_path / "c", "https://127.0.0.1:1")
    assert find_controller(cluster_dir=folder).trust == Trust()
    (folder / "controller" / "ca.pem").write_text("c")
    assert find_controller(cluster_dir=folder).trust == Trust(folder / "controller" / "ca.pem")
    monkeypatch.setenv("HOLDFAST_CA_FILE", "/run/ca.pem")
    assert find_controller(cluster_dir=folder).trust == Trust(Path("/run/ca.pem"))


def test_a_controller_serves_with_both_files_or_none(tmp_path: Path) -> None:
    """`[tls]` with a certificate alone, a key alone or a client's authority alone is an error; paths are the file's."""
    assert tls_files(load_settings(placed("", folder=tmp_path))) is None
    for text in ('cert = "a"', 'key = "a"', 'client_ca = "a"'):
        with pytest.raises(ConfigError, match="needs both"):
            tls_files(load_settings(placed(f"[tls]\n{text}\n", folder=tmp_path)))
    text = '[tls]\ncert = "a"\nkey = "/b"\nclient_ca = "c"\n'
    wanted = TlsFiles(tmp_path / "a", Path("/b"), tmp_path / "c")
    assert tls_files(load_settings(placed(text, folder=tmp_path))) == wanted
