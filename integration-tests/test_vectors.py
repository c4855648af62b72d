"""Embeddings and scores over HTTP, compared with sentence-transformers, which reads the same folders.

Its import takes ten seconds or more, so `make test` compares with it only in `server/tests/vectors`.
"""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Trunkline, http, serving
from numpy.typing import NDArray
from vector_models import write_bert, write_reranker

TEXTS = ["sea", "Tea on a terrace", "a rose is a rose", "x" * 40, "no one"]


def post(server: Trunkline, path: str, body: dict[str, Any]) -> Any:
    return http.post(f"{server.base_url}{path}", json=body, timeout=60).json()


def embed(server: Trunkline, texts: list[str]) -> NDArray[np.float32]:
    answer = post(server, "/v1/embeddings", {"input": texts, "encoding_format": "base64"})
    vectors = [base64.b64decode(entry["embedding"]) for entry in answer["data"]]
    return np.stack([np.frombuffer(vector, np.float32) for vector in vectors])


@pytest.mark.full
def test_an_encoder_answers_as_sentence_transformers_does(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = write_bert(tmp_path, "BertModel")
    wanted = SentenceTransformer(folder, device="cpu").encode(TEXTS, normalize_embeddings=True)
    with serving(model=folder) as server:
        found = embed(server, TEXTS)
        assert ((found * wanted).sum(1) >= 0.99999).all()
        # A text by itself has the same bits as beside the others.
        assert all((embed(server, [text])[0] == vector).all() for text, vector in zip(TEXTS, found, strict=True))
        long = " ".join("a" * 100)
        refused = post(server, "/v1/embeddings", {"input": long})
        assert "the prompt has 102 tokens, the limit is 64" in refused["error"]["message"]
        assert len(post(server, "/embed", {"inputs": long, "truncate": True})[0]) == 64
        assert "makes only vectors" in post(server, "/v1/completions", {"prompt": "a"})["error"]["message"]


@pytest.mark.full
def test_a_cross_encoder_ranks_as_sentence_transformers_does(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    folder = write_bert(tmp_path, "BertForSequenceClassification", num_labels=1)
    pairs = [(TEXTS[0], text) for text in TEXTS]
    wanted = CrossEncoder(folder, device="cpu").predict(pairs)
    with serving(model=folder) as server:
        answer = post(server, "/v1/rerank", {"query": TEXTS[0], "documents": TEXTS})
        scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
        assert [scores[index] for index in range(len(TEXTS))] == pytest.approx(wanted, abs=1e-4)
        assert [result["index"] for result in answer["results"]] == list(np.argsort(-wanted, kind="stable"))


@pytest.mark.full
def test_a_language_model_that_answers_ranks_as_sentence_transformers_does(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    folder = write_reranker(tmp_path)
    wanted = CrossEncoder(folder, device="cpu").predict([(TEXTS[1], text) for text in TEXTS])
    with serving("--kv-cache-dtype", "f16", model=folder) as server:
        answer = post(server, "/v1/rerank", {"query": TEXTS[1], "documents": TEXTS})
        scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
        assert [scores[index] for index in range(len(TEXTS))] == pytest.approx(wanted.tolist(), abs=1e-3)
        scored = post(server, "/v1/score", {"text_1": TEXTS[1], "text_2": TEXTS})
        assert [pair["score"] for pair in scored["data"]] == [scores[index] for index in range(len(TEXTS))]
        long = "a " * 200
        cut = post(server, "/rerank", {"query": "b", "texts": [long], "truncate": True})
        assert 0 < cut[0]["score"] < 1
        assert "the limit is" in post(server, "/rerank", {"query": "b", "texts": [long]})["error"]
        assert "v1/rerank" in "".join(server.banner)


def test_embeddings_of_a_model_that_also_chats_have_the_same_bits_under_load() -> None:
    texts = [f"Text number {index}: " + "it goes on and on. " * (index % 20) for index in range(40)]
    with serving("--pooling", "mean") as server, ThreadPoolExecutor(8) as pool:
        alone = np.concatenate([embed(server, [text]) for text in texts])
        body = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0}
        before = post(server, "/v1/completions", body)["choices"][0]["text"]
        chats = [pool.submit(post, server, "/v1/completions", body) for _ in range(6)]
        assert (embed(server, texts) == alone).all()
        assert {chat.result()["choices"][0]["text"] for chat in chats} == {before}
