"""vLLM's own request models: the router knows each of their fields, or refuses it by name."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingChatRequest, EmbeddingCompletionRequest
from vllm.entrypoints.pooling.scoring.protocol import (
    RerankRequest,
    ScoreDataRequest,
    ScoreQueriesDocumentsRequest,
    ScoreQueriesItemsRequest,
    ScoreTextRequest,
)
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeChatRequest, TokenizeCompletionRequest
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest

from plumage_router.request.audio import TRANSCRIPTION, TRANSLATION
from plumage_router.request.fields import CHAT, COMPLETION, DETOKENIZE, EMBEDDINGS, RERANK, SCORE, TOKENIZE
from plumage_router.request.forbidden_fields import FORBIDDEN


@pytest.mark.parametrize(
    ("model", "known"),
    [
        (ChatCompletionRequest, CHAT),
        (CompletionRequest, COMPLETION),
        (TokenizeCompletionRequest, TOKENIZE),
        (TokenizeChatRequest, TOKENIZE),
        (DetokenizeRequest, DETOKENIZE),
        (EmbeddingCompletionRequest, EMBEDDINGS),
        (EmbeddingChatRequest, EMBEDDINGS),
        (RerankRequest, RERANK),
        *((model, SCORE) for model in (ScoreTextRequest, ScoreDataRequest, ScoreQueriesItemsRequest)),
        (ScoreQueriesDocumentsRequest, SCORE),
    ],
)
def test_every_request_field_is_known_or_refused(model: Any, known: Any) -> None:
    assert set(model.model_fields) - known.keys() - FORBIDDEN.keys() == set()


@pytest.mark.parametrize(("model", "known"), [(TranscriptionRequest, TRANSCRIPTION), (TranslationRequest, TRANSLATION)])
def test_every_field_of_a_form_is_known_or_refused(model: Any, known: Any) -> None:
    names = {field.alias or name for name, field in model.model_fields.items()}
    assert names - known.keys() - FORBIDDEN.keys() == {"file"}
