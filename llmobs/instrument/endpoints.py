"""The endpoints whose requests are followed, and what each does in the words of the GenAI conventions."""

from __future__ import annotations

from collections.abc import Mapping

#: Path → operation. Everything else passes through untouched.
OPERATIONS: Mapping[str, str] = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/chat/completions/batch": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/cohere/v2/chat": "chat",
    "/inference/v1/generate": "text_completion",
    "/invocations": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
    "/pooling": "embeddings",
    "/classify": "classify",
    "/score": "score",
    "/v1/score": "score",
    "/rerank": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "translation",
}
