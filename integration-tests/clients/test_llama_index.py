"""`OpenAILike` of the unmodified LlamaIndex."""

from __future__ import annotations

import asyncio

from clients.given import KEY, POET, PROMPT, SYSTEM, WEATHER_QUESTION, City
from clients.plain import Plain
from harness import Trunkline
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

MESSAGES = [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=PROMPT)]


class Question(BaseModel):
    """The arguments of the tool."""

    city: str


def llm(server: Trunkline, model: str, chat: bool = True, max_tokens: int = 12) -> OpenAILike:
    return OpenAILike(
        api_base=f"{server.base_url}/v1",
        api_key=KEY,
        model=model,
        is_chat_model=chat,
        is_function_calling_model=True,
        context_window=2048,
        temperature=0,
        max_tokens=max_tokens,
        max_retries=0,
    )


def test_chats_and_streams(server: Trunkline, model: str, plain: Plain) -> None:
    answer = llm(server, model).chat(MESSAGES)
    assert answer.message.content == plain.chat(POET, 12)
    parts = [event.delta or "" for event in llm(server, model).stream_chat(MESSAGES)]
    assert "".join(parts) == answer.message.content


def test_completes_and_streams(server: Trunkline, model: str, plain: Plain) -> None:
    completer = llm(server, model, chat=False)
    answer = completer.complete("The sea is")
    assert answer.text == plain.complete("The sea is", 12)
    assert "".join(event.delta or "" for event in completer.stream_complete("The sea is")) == answer.text


def test_chats_async(server: Trunkline, model: str, plain: Plain) -> None:
    answer = asyncio.run(llm(server, model).achat(MESSAGES))
    assert answer.message.content == plain.chat(POET, 12)


def test_calls_and_structures_output(server: Trunkline, model: str) -> None:
    chat = llm(server, model, max_tokens=256)
    tool = FunctionTool.from_defaults(fn=lambda city: f"rain in {city}", name="get_weather", fn_schema=Question)
    answer = chat.chat_with_tools([tool], user_msg=WEATHER_QUESTION, tool_required=True)
    calls = chat.get_tool_calls_from_response(answer)
    assert {call.tool_name for call in calls} == {"get_weather"}
    assert all(Question.model_validate(call.tool_kwargs) for call in calls)
    results = [
        ChatMessage(role="tool", content="rain", additional_kwargs={"tool_call_id": call.tool_id}) for call in calls
    ]
    history = [ChatMessage(role="user", content=WEATHER_QUESTION), answer.message, *results]
    assert chat.chat(history).message.content
    assert isinstance(chat.structured_predict(City, PromptTemplate("Tell of Paris.")), City)
