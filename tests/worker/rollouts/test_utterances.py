"""What a participant said is understood, repaired and written back without loss."""

from __future__ import annotations

import json

import pytest
from agent_framework import Content, Message

from app.contract import MessageDoc, ToolCallDoc
from worker.rollouts.utterances import as_request, heard, parse_arguments, repair


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        ("\ud800", "\ufffd"),
        ("a\udfffb", "a\ufffdb"),
        ("b\ud800c", "b\ufffdc"),
        ("a\ud800", "a\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("τ² 😀", "τ² 😀"),
    ],
)
def test_what_cannot_be_encoded_becomes_a_replacement_character(broken: str, whole: str) -> None:
    assert repair(broken) == whole


@pytest.mark.parametrize(
    "arguments",
    ["", "nonsense", "[1]", "3", '"text"', "null", '{"a": NaN}', '{"a": 1e999}', "[" * 100_000],
)
def test_only_a_json_object_is_arguments(arguments: str) -> None:
    assert parse_arguments(arguments) is None


def test_arguments_that_a_server_left_out_are_an_empty_object() -> None:
    said = heard([Message("assistant", [Content.from_function_call("c", "list_users")])], 0)
    assert said.calls[0].arguments == {}


def test_text_and_calls_of_one_message_are_both_heard() -> None:
    contents = ["I will ", Content.from_function_call("", "f", arguments='{"x": 1}'), "do it"]
    said = heard([Message("assistant", contents)], 4)
    assert said.text == "I will do it"
    assert [(c.id, c.name, c.arguments) for c in said.calls] == [("call_4", "f", {"x": 1})]


def test_surrogates_hidden_in_escapes_of_arguments_are_repaired() -> None:
    arguments = '{"title": "a\\ud800", "k\\udc00": ["\\ud83d\\ude00"]}'
    said = heard(
        [Message("assistant", [Content.from_function_call("c", "f", arguments=arguments)])], 0
    )
    assert said.calls[0].arguments == {"title": "a\ufffd", "k\ufffd": ["😀"]}
    assert said.repaired


@pytest.mark.parametrize("raw", ["not json", "[1, 2]", "{"])
def test_arguments_are_always_sent_back_as_json(raw: str) -> None:
    call = ToolCallDoc(id="c", name="f", arguments=raw)
    message = as_request(MessageDoc(role="assistant", tool_calls=[call]), speaker="assistant")
    sent = message.contents[0].arguments
    assert isinstance(sent, str)
    json.loads(sent)


def test_the_user_simulator_is_shown_flipped_roles() -> None:
    docs = [MessageDoc(role="assistant", content="Hi"), MessageDoc(role="user", content="Ho")]
    assert [as_request(doc, speaker="user").role for doc in docs] == ["user", "assistant"]
    assert [as_request(doc, speaker="assistant").role for doc in docs] == ["assistant", "user"]
