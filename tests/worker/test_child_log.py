"""Output of the child as lines."""

import os
import random

from worker.child_log import MAX_LINE_BYTES, ChildLog, LineSplitter, secrets_of


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def split(*pieces):
    splitter = LineSplitter(Clock())
    return [line for piece in pieces for line in splitter.feed(piece)] + splitter.close()


def test_lines_end_at_newlines_wherever_the_reads_fall():
    text = "one\r\ntwo\n\nthree τ² \x1b[31mred\x1b[0m\nlast".encode()
    expected = ["one", "two", "", "three τ² \x1b[31mred\x1b[0m", "last"]
    assert split(text) == expected
    assert split(*(bytes([byte]) for byte in text)) == expected
    seed = random.randrange(2**32)
    cuts = sorted(random.Random(seed).sample(range(len(text)), 5))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(*pieces) == expected, f"seed {seed}"


def test_junk_becomes_text_and_control_bytes_stay():
    assert split(b"a\0b\xff\xfec\x07\n") == ["ab\ufffd\ufffdc\x07"]


def test_a_long_line_is_cut_and_says_so():
    (line,) = split(b"x" * MAX_LINE_BYTES, b"y" * 100_000, b"\n")
    assert line == "x" * MAX_LINE_BYTES + " [100000 bytes cut]"


def test_of_a_progress_bar_one_line_a_second_is_kept_and_the_last():
    clock = Clock()
    splitter = LineSplitter(clock)
    kept = []
    for percent in range(100):
        clock.now = percent * 0.1
        kept += splitter.feed(b"\r%d%%" % percent)
    kept += splitter.feed(b"\r100%\n")
    assert 8 <= len(kept) <= 12
    assert kept[-1] == "100%"


def test_a_progress_line_that_was_held_back_comes_when_its_time_has_come():
    clock = Clock()
    splitter = LineSplitter(clock)
    assert splitter.feed(b"1%\r2%\r3%\r4") == ["1%"]
    assert splitter.due() == []
    clock.now = 5
    assert splitter.due() == ["3%"]
    assert splitter.due() == []


def test_secrets_of_the_environment_show_neither_in_file_nor_in_reports(tmp_path):
    secrets = secrets_of({"OPENAI_API_KEY": "sk-0123456789", "EMPTY_TOKEN": "", "PATH": "/usr/bin"})
    assert secrets == ("sk-0123456789",)
    assert secrets_of({"MY_ENDPOINT": "sk-0123456789"}) == ()
    assert secrets_of({"MY_ENDPOINT": "sk-0123456789"}, named=["MY_ENDPOINT"]) == secrets
    assert secrets_of({"MY_ENDPOINT": "EMPTY"}, named=["MY_ENDPOINT"]) == ()
    reading, writing = os.pipe()
    lines = []
    log = ChildLog(reading, tmp_path / "log", lines.extend, secrets)
    os.write(writing, b"key sk-0123456789 is wrong\n")
    os.close(writing)
    assert log.join(5)
    assert lines == log.tail() == ["key *** is wrong"]
    assert (tmp_path / "log").read_text() == "key *** is wrong\n"


def test_the_tail_keeps_the_last_fifty_lines_of_many(tmp_path):
    reading, writing = os.pipe()
    batches = []
    log = ChildLog(reading, tmp_path / "log", batches.append)
    os.write(writing, b"".join(b"%d\n" % n for n in range(1000)))
    os.close(writing)
    assert log.join(5)
    assert log.tail() == [str(n) for n in range(950, 1000)]
    assert [line for batch in batches for line in batch] == [str(n) for n in range(1000)]
    assert max(map(len, batches)) <= 200
