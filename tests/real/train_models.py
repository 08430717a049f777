"""Trains the tiny models of this folder: train_models.py OUTPUT_FOLDER. About a minute on 2 cores.

A Llama-style target and a smaller standalone drafter learn a made-up grammar of short sentences; the EAGLE-3 head
then learns to continue the target's hidden states. Needs torch, transformers, tokenizers and safetensors: the
environment of install.sh has them. The texts are generated from a seed, so nothing is downloaded.
"""

import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

VOCABULARY = 512
HEAD_DIM = 32
AUX_LAYERS = [0, 1, 2]  # the layers, counted from 0, whose outputs the EAGLE-3 head sees

DETERMINERS = ["the", "a", "my", "your", "one", "this", "that", "every"]
ADJECTIVES = ["quick", "slow", "brown", "lazy", "old", "young", "red", "green", "small", "large"]
NOUNS = ["fox", "dog", "cat", "bird", "horse", "cow", "hen", "frog", "wolf", "bear"]
VERBS = ["jumps over", "runs past", "looks at", "sits near", "walks around", "sleeps beside"]


def sentence(rng: random.Random) -> str:
    """One sentence; four in ten end with a number that is said twice."""
    kinds = (DETERMINERS, ADJECTIVES, NOUNS, VERBS, DETERMINERS, ADJECTIVES, NOUNS)
    words = " ".join(rng.choice(kind) for kind in kinds)
    if rng.random() < 0.4:
        number = rng.randint(0, 99)
        words += f" {number} times and again {number}"
    return words + " . "


def make_tokenizer(text: str) -> Tokenizer:
    """A byte-level BPE with an alphabet that can spell any prompt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def make_llama(*, layers: int, hidden: int, heads: int, kv_heads: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=hidden * 3,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=HEAD_DIM,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=1,
            tie_word_embeddings=False,
        )
    )


def windows(ids: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """Random stretches of the corpus."""
    starts = torch.randint(0, len(ids) - length - 1, (count,))
    return torch.stack([ids[start : start + length] for start in starts])


def train_llama(model: LlamaForCausalLM, ids: torch.Tensor, *, steps: int = 250, rate: float = 3e-3) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(steps):
        batch = windows(ids, 16, 64)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 20) * (1 - step / steps)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.3f}", flush=True)


class EagleHead(torch.nn.Module):
    """The EAGLE-3 head: three hidden states fused, then one layer over [embedding, hidden]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.fc = torch.nn.Linear(3 * hidden, hidden, bias=False)
        self.input_layernorm, self.hidden_norm = LlamaRMSNorm(hidden), LlamaRMSNorm(hidden)
        self.post_attention_layernorm, self.norm = LlamaRMSNorm(hidden), LlamaRMSNorm(hidden)
        self.q_proj = torch.nn.Linear(2 * hidden, 4 * HEAD_DIM, bias=False)
        self.k_proj = torch.nn.Linear(2 * hidden, 2 * HEAD_DIM, bias=False)
        self.v_proj = torch.nn.Linear(2 * hidden, 2 * HEAD_DIM, bias=False)
        self.o_proj = torch.nn.Linear(4 * HEAD_DIM, hidden, bias=False)
        self.mlp = LlamaMLP(config)
        self.lm_head = torch.nn.Linear(hidden, VOCABULARY, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and the hidden states that the next draft step starts from."""
        batch, length, _ = hidden.shape
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        queries = self.q_proj(both).view(batch, length, 4, HEAD_DIM).transpose(1, 2)
        keys = self.k_proj(both).view(batch, length, 2, HEAD_DIM).transpose(1, 2)
        values = self.v_proj(both).view(batch, length, 2, HEAD_DIM).transpose(1, 2)
        cos, sin = self.rotary(both, torch.arange(length)[None].expand(batch, length))
        queries, keys = apply_rotary_pos_emb(queries, keys, cos, sin)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        hidden = self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1)) + hidden
        hidden = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return self.lm_head(self.norm(hidden)), hidden

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """The tensors under the names SGLang reads; the draft vocabulary is the target's own."""
        outside_the_layer = ("fc", "norm", "lm_head")
        tensors = {
            name if name.split(".")[0] in outside_the_layer else _layer_name(name): parameter.detach().contiguous()
            for name, parameter in self.named_parameters()
        }
        tensors["d2t"] = torch.zeros(VOCABULARY, dtype=torch.int64)
        tensors["t2d"] = torch.ones(VOCABULARY, dtype=torch.bool)
        return tensors


def _layer_name(name: str) -> str:
    return f"midlayer.self_attn.{name}" if name.split(".")[0].endswith("_proj") else f"midlayer.{name}"


def train_eagle(head: EagleHead, target: LlamaForCausalLM, ids: torch.Tensor, *, steps: int = 300) -> None:
    """Teach the head two draft steps: the hidden state of token p and the embedding of p + 1 give token p + 2."""
    length = 64
    optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3)
    target.eval()
    for _ in range(steps):
        starts = torch.randint(0, len(ids) - length - 3, (16,))
        batch = torch.stack([ids[start : start + length + 2] for start in starts])
        with torch.no_grad():
            output = target(input_ids=batch, output_hidden_states=True)
            # hidden_states[0] is the embedding, so the output of layer i is hidden_states[i + 1]
            seen = torch.cat([output.hidden_states[layer + 1] for layer in AUX_LAYERS], -1)
            embedded = target.model.embed_tokens(batch)
        hidden, loss = head.fc(seen[:, :length]), 0
        for depth in range(2):
            count = length - depth
            later = slice(1 + depth, 1 + depth + count)
            logits, next_hidden = head(embedded[:, later], hidden[:, :count])
            wanted = output.logits[:, later].softmax(-1)
            loss = loss - (wanted * logits.log_softmax(-1)).sum(-1).mean()
            hidden = next_hidden
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    agreement = (logits.argmax(-1) == wanted.argmax(-1)).float().mean()
    print(f"EAGLE-3 loss {loss.item() / 2:.3f}, top-1 agreement {agreement:.2f}", flush=True)


def save_eagle(head: EagleHead, target_folder: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(head.checkpoint(), str(folder / "model.safetensors"))
    config = json.loads((target_folder / "config.json").read_text())
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCABULARY,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": AUX_LAYERS},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def main(output: Path) -> None:
    torch.set_num_threads(2)
    rng = random.Random(0)
    text = "".join(sentence(rng) for _ in range(20_000))
    tokenizer = make_tokenizer(text)
    ids = torch.tensor(tokenizer.encode(text).ids)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"

    def train(name: str, **shape: int) -> LlamaForCausalLM:
        started = time.monotonic()
        model = make_llama(**shape)
        train_llama(model, ids)
        model.save_pretrained(output / name)
        wrapped.save_pretrained(output / name)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
        return model

    target = train("target", layers=4, hidden=128, heads=4, kv_heads=2, seed=0)
    train("draft", layers=1, hidden=64, heads=2, kv_heads=1, seed=1)

    head = EagleHead(target.config)
    head.lm_head.weight.data.copy_(target.lm_head.weight)
    train_eagle(head, target, ids)
    save_eagle(head, output / "target", output / "eagle3")
    wrapped.save_pretrained(output / "eagle3")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
