"""Train the built-in model folder `builtin://tiny-chat`: a small, real byte-level BPE and a ChatML template.

The simulator needs a tokenizer whose tokens behave like a real model's (several bytes each, cut at word borders), and
nothing may be downloaded to get one. The standard library's own sources are prose and code that every Python carries.
The folder is committed; run this only to change it. The same Python and `tokenizers` give the same bytes.

    python scripts/make_tiny_model.py            write the folder
    python scripts/make_tiny_model.py --check    train again and compare, exit 1 on a difference
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from plumage_engine.vllm.tiny_model import SIZES, llama_config, tokenizer_config, train

FOLDER = Path(__file__).parent.parent / "core" / "plumage" / "models" / "tiny_chat"
VOCABULARY = 8000
SKIPPED = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "dist-packages", "turtledemo"}
TEMPLATE = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def sources() -> Iterator[str]:
    """The standard library's modules in a fixed order, without its tests and its larger tools."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not SKIPPED & set(path.relative_to(root).parts):
            yield path.read_text(encoding="utf-8", errors="replace")


def build() -> dict[str, str]:
    """File name → text of the whole folder."""
    tokenizer = train(sources(), VOCABULARY)
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False) + "\n",
        "tokenizer_config.json": json.dumps(tokenizer_config(), indent=2) + "\n",
        "config.json": json.dumps(llama_config(tokenizer, SIZES["tiny"], tied=True), indent=2) + "\n",
        "chat_template.jinja": TEMPLATE,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed folder instead of writing it")
    check = parser.parse_args().check
    differing = []
    for name, text in build().items():
        path = FOLDER / name
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            differing.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if differing:
        print(f"{FOLDER.name} differs from what this Python would train: {', '.join(differing)}")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
