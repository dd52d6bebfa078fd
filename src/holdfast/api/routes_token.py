"""`POST /v1/token`: a token for a proof. The one route beside probes that takes no token; see `exchange.py`."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.datastructures import State
from litestar.exceptions import NotAuthorizedException
from litestar.params import JSONBody
from litestar.status_codes import HTTP_200_OK

from holdfast.api.exchange import Exchange
from holdfast.errors import NotFoundError, RefusedError
from holdfast.model.answers import TokenAnswer, TokenRequest

BODY_MAX = 16 * 1024


@post("/token", status_code=HTTP_200_OK, tags=["report"], request_max_body_size=BODY_MAX)
async def token(request: Request[Any, Any, State], state: State, data: JSONBody[TokenRequest]) -> TokenAnswer:
    """A short-lived token for a munge credential: root's for the agent of its node, a user's for their own jobs.

    With `[slurm] munge` of holdfast.toml. A launcher's is for one job of its user.
    """
    exchange: Exchange | None = state.exchange
    if exchange is None:
        raise NotFoundError("this controller takes no munge credentials: [slurm] munge of its holdfast.toml")
    state.limits.check_exchange(request)
    try:
        return await exchange.take(state.controller, data.credential)
    except RefusedError as error:
        state.limits.count_refusal(request)
        raise NotAuthorizedException(str(error)) from error


HANDLERS = [token]
