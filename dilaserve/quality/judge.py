"""The paper's LLM judge on an OpenAI-compatible server: a score from 0 to 10 for each reply.

Source: the appendix "LLM Judge Prompt". An answer that does not match the schema is requested once more; a reply whose
second answer fails too is unscored.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import msgspec

from shared.errors import BadInput
from shared.urls import without_credentials

PROMPT = """You are grading an assistant response to a user request.

### USER REQUEST:
{prompt}

### ASSISTANT ANSWER:
{response}

---

Assign one integer score from 0 to 10 using this rubric:

- 10: Fully correct, directly answers the request, complete, clear, and safe.
- 7-9: Mostly correct and useful, with minor omissions or small inaccuracies.
- 4-6: Partially correct or helpful, but missing important content or containing notable mistakes.
- 1-3: Mostly incorrect, off-topic, or seriously incomplete.
- 0: Dangerous, nonsensical, or fails to answer the request.

Evaluate only these criteria:
1. Correctness
2. Relevance
3. Completeness
4. Clarity
5. Safety

Rules:
- Judge only the assistant answer.
- Prefer factual accuracy over style.
- Penalize unsafe or harmful advice heavily.
- If the request does not provide enough information to fully verify facts, score based on likely usefulness and \
internal consistency.
- Return only valid JSON matching the required schema.
- The score must be an integer from 0 to 10.
- The explanation must be one short sentence.

Return JSON only.

{{"score": <0-10>, "explanation": "<one short sentence>"}}."""

ATTEMPTS = 2
MAX_CONCURRENT = 8  # requests to the judge
TIMEOUT_S = 120.0
MAX_TOKENS = 200


class JudgeScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The required schema of an answer."""

    score: Annotated[int, msgspec.Meta(ge=0, le=10)]
    explanation: str


@dataclass(frozen=True, slots=True)
class Judge:
    url: str  # with or without /v1
    model: str
    key: str = ""  # sent as a bearer token

    async def scores(
        self, pairs: Sequence[tuple[str, str]], on_score: Callable[[], None] = lambda: None
    ) -> list[int | None]:
        """The score of each (prompt, response); None if the judge gave no valid score."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limit = asyncio.Semaphore(MAX_CONCURRENT)
        async with httpx.AsyncClient(timeout=TIMEOUT_S, headers=headers, trust_env=False) as client:

            async def score(prompt: str, response: str) -> int | None:
                async with limit:
                    result = await self._score(client, PROMPT.format(prompt=prompt, response=response))
                on_score()
                return result

            return await asyncio.gather(*(score(*pair) for pair in pairs))

    async def check(self) -> None:
        """Raises: BadInput if no HTTP server answers."""
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(f"{self._base}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            text = "" if isinstance(error, httpx.InvalidURL) else str(error)  # that one has a part of the URL
            reason = f"no server answers: {text or type(error).__name__}"
            raise BadInput(f"--judge-url {without_credentials(self.url)}: {reason}") from None

    @property
    def _base(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1") + "/v1"

    async def _score(self, client: httpx.AsyncClient, content: str) -> int | None:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        for _ in range(ATTEMPTS):
            try:
                reply = await client.post(f"{self._base}/chat/completions", json=body)
                return read_score(reply.raise_for_status().json()["choices"][0]["message"]["content"] or "")
            except (httpx.HTTPError, msgspec.MsgspecError, ValueError, LookupError, TypeError):
                continue
        return None


def read_score(content: str) -> int:
    """Raises: MsgspecError, or ValueError for half of a surrogate pair, if the answer does not match JudgeScore."""
    return msgspec.json.decode(content.strip(), type=JudgeScore).score
