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
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FOLDER = Path(__file__).parent.parent / "core" / "plumage" / "models" / "tiny_chat"
VOCABULARY = 8000
CONTEXT = 32768
BOS, START, END = SPECIALS = ("<|bos|>", "<|im_start|>", "<|im_end|>")
SKIPPED = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "dist-packages", "turtledemo"}
# Contractions, words with one leading mark, up to three digits, punctuation, line ends, blanks: the split that
# today's byte-level models use in one form or another.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
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


def train() -> Tokenizer:
    """Byte-level BPE: every byte is a token, so that no text is unknown and ids turn back into the same bytes."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIALS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(sources(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    add_bos = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), add_bos])
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": [START],
    }


def model_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """A Llama small enough for a CPU with dummy weights; the simulator reads the context length only."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(END),
        "max_position_embeddings": CONTEXT,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def build() -> dict[str, str]:
    """File name → text of the whole folder."""
    tokenizer = train()
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False) + "\n",
        "tokenizer_config.json": json.dumps(tokenizer_config(), indent=2) + "\n",
        "config.json": json.dumps(model_config(tokenizer), indent=2) + "\n",
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
