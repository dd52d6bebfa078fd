"""holdfast.telemetry.stacks: dumps of faulthandler and py-spy to threads and frames."""

import json

from holdfast.telemetry.stacks import Frame, ThreadStack, parse_dump, parse_faulthandler, parse_pyspy

TWO_THREADS = """Thread 0x00007f1c2a7fc640 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/ada/my train.py", line 12 in <lambda>

Current thread 0x00007f1c2b1d4740 (most recent call first):
  File "/home/ada/train.py", line ??? in step
  File "/home/ada/train.py", line 40 in <module>
"""


def test_faulthandler_threads_and_frames():
    """Each thread has its frames innermost first; the one that took the signal is current; `???` is line 0."""
    assert parse_faulthandler(TWO_THREADS) == [
        ThreadStack(
            0x7F1C2A7FC640,
            False,
            (Frame("/usr/lib/python3.11/threading.py", 327, "wait"), Frame("/home/ada/my train.py", 12, "<lambda>")),
        ),
        ThreadStack(
            0x7F1C2B1D4740,
            True,
            (Frame("/home/ada/train.py", 0, "step"), Frame("/home/ada/train.py", 40, "<module>")),
        ),
    ]


def test_faulthandler_later_versions_and_cut_dumps():
    """Thread names, an empty thread, a truncation mark, a C stack and a cut last line are coped with."""
    text = """Fatal Python error: Segmentation fault

Thread 0x01 [saver one] (most recent call first):
  <no Python frame>

Current thread 0x02 (most recent call first):
  Garbage-collecting
  File "a.py", line 1 in f
  ...

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x48 [0x5c]
  File "not.py", line 9 in not_python

Thread 0x03 (most recent call first):
  File "b.py", li"""
    assert parse_faulthandler(text) == [
        ThreadStack(1, False, (), "saver one"),
        ThreadStack(2, True, (Frame("a.py", 1, "f"),)),
        ThreadStack(3, False, ()),
    ]


def test_text_without_threads_is_no_stack():
    """Other text, and no text, give no threads rather than an error."""
    assert parse_faulthandler("") == parse_faulthandler("loss 1.0\n") == parse_pyspy("") == parse_pyspy("[broken") == []
    assert parse_pyspy('{"error": "no such process"}') == []


def test_pyspy_text():
    """py-spy's text form gives the thread's name and who holds the interpreter lock."""
    text = """Process 4302: .venv/bin/python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4302 (active+gil): "MainThread"
    busy (train.py:4)
    <module> (my train.py:6)
Thread 0x7FBE (idle)
    idle (train.py:2)
    write (libc.so.6)
"""
    assert parse_pyspy(text) == [
        ThreadStack(4302, True, (Frame("train.py", 4, "busy"), Frame("my train.py", 6, "<module>")), "MainThread"),
        ThreadStack(0x7FBE, False, (Frame("train.py", 2, "idle"), Frame("libc.so.6", 0, "write"))),
    ]


def test_pyspy_json():
    """py-spy's JSON form gives the same with whole file names."""
    frame = {"name": "busy", "filename": "/tmp/train.py", "short_filename": "train.py", "line": 4, "locals": None}
    thread = {"pid": 1, "thread_id": 140, "thread_name": "MainThread", "os_thread_id": 4302, "active": True}
    text = json.dumps([{**thread, "owns_gil": True, "frames": [frame]}])
    assert parse_pyspy(text) == [ThreadStack(4302, True, (Frame("/tmp/train.py", 4, "busy"),), "MainThread")]


def test_a_text_that_begins_as_a_dump_is_read_as_its_own_tool_wrote_it():
    """py-spy's process line or a thread of faulthandler comes first; any other text is no dump."""
    spy = 'Process 7: python train.py\nPython v3.11.2\n\nThread 7 (active): "MainThread"\n    train (train.py:3)\n'
    assert parse_dump(f"\n{spy}") == parse_pyspy(spy)
    assert parse_pyspy(spy)[0].frames == (Frame("train.py", 3, "train"),)
    assert parse_dump(TWO_THREADS) == parse_faulthandler(TWO_THREADS)
    assert parse_dump("Process 7: python train.py\nended\n") == parse_dump(f"step 1\n{TWO_THREADS}") == []
