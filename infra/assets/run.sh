#!/bin/bash
# Starts a streaming function: the web adapter forwards each request to this server. SPASS_APP names the function's ASGI app.
export PYTHONPATH="${LAMBDA_TASK_ROOT}:/opt/python"
# The adapter closes idle connections itself; a server that closed one as the function thaws would lose a request.
exec python3 -m uvicorn "${SPASS_APP}" --host 127.0.0.1 --port "${AWS_LWA_PORT}" --timeout-keep-alive 900 --no-access-log \
  --log-level warning
