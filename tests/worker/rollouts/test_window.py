"""The assistant's window keeps the latest that fits, and calls with their results."""

from __future__ import annotations

import random

from app.contract import MessageDoc, ToolCallDoc
from worker.rollouts.window import Window, estimate_tokens, message_tokens


def random_conversation(rng: random.Random) -> list[MessageDoc]:
    docs: list[MessageDoc] = []
    for turn in range(rng.randint(1, 25)):
        words = "word " * rng.randint(0, 30)
        if rng.random() < 0.5:
            docs.append(MessageDoc(role=rng.choice(["user", "assistant"]), content=words))
            continue
        calls = [
            ToolCallDoc(id=f"{turn}-{n}", name="f", arguments={"x": words})
            for n in range(rng.randint(1, 3))
        ]
        docs.append(MessageDoc(role="assistant", tool_calls=calls))
        docs += [MessageDoc(role="tool", tool_call_id=c.id, content=words) for c in calls]
    return docs


def test_a_window_never_separates_a_result_from_its_call() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(300):
        docs = random_conversation(rng)
        budget = rng.randint(1, 600)
        shown = Window(budget, "system", None).fit(docs)
        assert shown == docs[len(docs) - len(shown) :]
        assert shown, "the newest message is always shown"
        made = [call.id for doc in shown for call in doc.tool_calls or []]
        answered = [doc.tool_call_id for doc in shown if doc.role == "tool"]
        assert made == answered
        spent = message_tokens(MessageDoc(role="system", content="system"), estimate_tokens)
        spent += sum(message_tokens(doc, estimate_tokens) for doc in shown)
        newest_alone = all(doc.role == "tool" for doc in shown[1:])
        assert spent <= budget or newest_alone


def test_a_window_leaves_out_no_more_than_it_must() -> None:
    docs = [MessageDoc(role="user", content="x" * 40) for _ in range(10)]
    each = message_tokens(docs[0], estimate_tokens)
    system = message_tokens(MessageDoc(role="system", content="s" * 8), estimate_tokens)
    assert len(Window(system + 3 * each, "s" * 8, None).fit(docs)) == 3
    assert len(Window(system + 3 * each - 1, "s" * 8, None).fit(docs)) == 2
    assert len(Window(10_000, "s" * 8, None).fit(docs)) == 10


def test_a_window_counts_each_text_once_with_the_tokenizer_it_is_given() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    window = Window(100, "system", count)
    docs = [MessageDoc(role="user", content=f"m{n}") for n in range(5)]
    window.fit(docs[:3])
    window.fit(docs)
    assert counted == ["system", "m0", "m1", "m2", "m3", "m4"]
