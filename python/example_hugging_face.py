#!/usr/bin/env python3
"""Gives a model of Hugging Face's Transformers windowed rotary attention, without more training.

    python3 python/example_hugging_face.py [LIBTILE_C]

The model is a small Llama with random weights. use_windowed_attention() changes a trained one in
the same way. A batch with texts of different lengths is padded right, then left. With a
window that no text is longer than, ReRoPE is plain RoPE, so the logits must be those of the model's
own attention. With a smaller window the model sees no distance that is larger than that.
"""
import sys

import torch
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import flash_attention_mask

import tile_by_tile as tile


class WindowedLlamaAttention(torch.nn.Module):
    """The projections of a LlamaAttention, around an attention that rotates q and k itself. The
    model's own rotates them first, and then calls what AttentionInterface knows, which is too late
    for a second rotation."""

    def __init__(self, own, attention):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            own.q_proj, own.k_proj, own.v_proj, own.o_proj)
        self.head_dim, self.layer_idx, self.attention = own.head_dim, own.layer_idx, attention

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None,
                past_key_values=None, **kwargs):
        """hidden_states: [batch, queries, dim]; attention_mask: [batch, keys], False where a text
        is padded, or None; past_key_values: the cache, with k as it was before any rotation."""
        q, k, v = (project(hidden_states).unflatten(-1, (-1, self.head_dim))
                   for project in (self.q_proj, self.k_proj, self.v_proj))
        if past_key_values is not None:  # which has [batch, heads, keys, head_dim]
            k, v = (each.transpose(1, 2) for each in past_key_values.update(
                k.transpose(1, 2), v.transpose(1, 2), self.layer_idx))
        if attention_mask is None:
            o = self.attention(q, k, v)
        else:
            o = padded(self.attention, q, k, v, attention_mask)
        return self.o_proj(o.flatten(2)), None


def padded(attention, q, k, v, mask):
    """Attention of texts that are padded on either side. The operator's lengths are those of texts
    that begin at 0. A text that is padded left is therefore moved there, by as many places as it
    has padding before it, and what comes out is moved back. Texts that are padded right stay where
    they are. Moved, their tokens have the positions from 0 on: rotations depend on distances only,
    and Self-Extend, which rounds positions, is meant to begin with the text."""
    of_keys, of_queries = mask, mask[:, -q.shape[1]:]  # the queries are the last tokens
    o = attention(begun_at_0(q, of_queries), begun_at_0(k, of_keys), begun_at_0(v, of_keys),
                  query_lengths=of_queries.sum(1), key_lengths=of_keys.sum(1))
    return begun_at_0(o, of_queries, back=True)


def begun_at_0(x, mask, back=False):
    """x, [batch, length, heads, head_dim], with each entry rolled so that what its mask, [batch,
    length], has first comes first."""
    start = mask.int().argmax(1, keepdim=True)
    length = x.shape[1]
    places = torch.arange(length, device=x.device) + (-start if back else start)
    return x.gather(1, (places % length)[..., None, None].expand_as(x))


def refuse(*_, **__):
    raise NotImplementedError("attention that use_windowed_attention() has not replaced")


# The model makes its masks for the implementation that it is set to. FlashAttention's is the
# batch's own, [batch, keys], and no matrix of queries and keys.
AttentionInterface.register("tile_by_tile", refuse)
AttentionMaskInterface.register("tile_by_tile", flash_attention_mask)


def use_windowed_attention(model, window, positions, far="rerope", far_factor=1.0):
    """Replaces the attention of all layers. They share the tables, for up to `positions` keys."""
    rope = model.model.rotary_emb
    attention = tile.WindowedRotaryAttention(
        model.config.head_dim, positions, window, far=far, far_factor=far_factor,
        frequencies=rope.inv_freq, attention_factor=rope.attention_scaling, device=model.device)
    for layer in model.model.layers:
        layer.self_attn = WindowedLlamaAttention(layer.self_attn, attention)
    model.set_attn_implementation("tile_by_tile")


def make_model(device, dtype):
    torch.manual_seed(1)
    # Weights larger than usual, so that attention is not nearly the same for all keys.
    config = LlamaConfig(vocab_size=128, hidden_size=256, intermediate_size=256,
                         num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         head_dim=64, pad_token_id=0, eos_token_id=None, initializer_range=0.06)
    return LlamaForCausalLM(config).to(device, dtype).eval()


def batch_of(texts, side, device):
    """Ids, and a mask that is 1 where there is a token, [batch, length] each."""
    ids, mask = (torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long, device=device)
                 for _ in range(2))
    for row, text in enumerate(texts):
        here = slice(len(text)) if side == "right" else slice(-len(text), None)
        ids[row, here], mask[row, here] = text.to(device), 1
    return dict(input_ids=ids, attention_mask=mask)


@torch.no_grad()
def logits_of_tokens(model, batch):
    """[tokens, vocabulary], in fp32, without those of padding."""
    return model(**batch).logits[batch["attention_mask"].bool()].float()


@torch.no_grad()
def continuation(model, batch):
    """Five more tokens of each text, one at a time and with a cache."""
    return model.generate(**batch, max_new_tokens=5, do_sample=False)[:, -5:]


def compare(device, dtype, tolerance):
    torch.manual_seed(2)
    texts = [torch.randint(1, 128, (length,)) for length in (40, 23)]
    for side in ("right", "left"):
        batch = batch_of(texts, side, device)
        own, near, far = (make_model(device, dtype) for _ in range(3))
        use_windowed_attention(near, window=64, positions=64)
        use_windowed_attention(far, window=8, positions=64)
        wanted = logits_of_tokens(own, batch)
        off = [((logits_of_tokens(model, batch) - wanted).abs().max() / wanted.abs().max()).item()
               for model in (near, far)]
        print(f"{dtype}, padded {side}: logits off by {off[0]:.1e} of the largest with a window "
              f"of 64, by {off[1]:.1e} with one of 8")
        if not off[0] <= tolerance < off[1]:
            sys.exit(f"{tolerance:.1e} should lie between the two")
        # Only texts that are padded left can be continued. In bf16 two tokens may be as likely.
        if side == "left" and dtype == torch.float32:
            if not torch.equal(continuation(near, batch), continuation(own, batch)):
                sys.exit("the texts are continued by other tokens than the model's own")
            print(f"and continued by {continuation(far, batch).tolist()}")
    for rotation in ("leaky_rerope", "self_extend"):
        model = make_model(device, dtype)
        use_windowed_attention(model, window=8, positions=64, far=rotation, far_factor=4.0)
        if not logits_of_tokens(model, batch).isfinite().all():
            sys.exit(f"{rotation}: not all logits are finite")


def main():
    tile.load(*sys.argv[1:2])
    compare(tile.device(), torch.float32, 1e-4)
    compare(tile.device(), torch.bfloat16, 5e-2)
    print("Where no text is longer than the window, logits are those of the model's own attention.")


if __name__ == "__main__":
    main()
