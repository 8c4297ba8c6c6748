"""`python -m local.standin --port 4999`: the stand-in on its own."""

import argparse

import uvicorn

from local.standin.app import app


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m local.standin", description="The offline stand-in model behind OpenAI's wire format."
    )
    parser.add_argument("--port", type=int, required=True, help="the loopback port to serve on")
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")


if __name__ == "__main__":
    main()
