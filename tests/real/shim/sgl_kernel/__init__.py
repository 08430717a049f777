"""Pure-PyTorch stand-in for the CPU build of `sgl_kernel` (not on PyPI).

Only the operators that SGLang 0.5.23 calls with SGLANG_USE_CPU_ENGINE=1, a dense
Llama-style model and no AMX: two attention operators plus the small integer
operators of the speculative workers. Slow on purpose, exact in meaning.
"""

import ctypes

import torch
from torch.nn.functional import scaled_dot_product_attention as _sdpa

__version__ = "0.0.0+specsearch.cpu"
_LIB = torch.library.Library("sgl_kernel", "FRAGMENT")


def _op(schema, fn):
    name = schema.split("(")[0]
    _LIB.define(schema)
    _LIB.impl(name, fn, "CompositeExplicitAutograd")


def _one(q, k, v, scale, mask, cap):
    # q [Tq,H,D] k,v [Tk,Hk,D] -> [Tq,H,Dv]
    if cap and cap > 0:
        g = q.shape[1] // k.shape[1]
        kk, vv = k.repeat_interleave(g, 1).float(), v.repeat_interleave(g, 1).float()
        s = torch.einsum("qhd,khd->hqk", q.float(), kk) * scale
        s = cap * torch.tanh(s / cap)
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        return torch.einsum("hqk,khd->qhd", s.softmax(-1), vv).to(q.dtype)
    out = _sdpa(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[0].transpose(0, 1)


def _decode(
    q,
    kb,
    vb,
    ks,
    vs,
    o,
    k,
    v,
    loc,
    attn_logits,
    r2t,
    rpi,
    seq_lens,
    scale,
    cap,
    cross=False,
    window=0,
    enc=None,
    sinks=None,
):
    if k is not None and v is not None:
        kb.index_copy_(0, loc.long(), k.view(-1, *kb.shape[1:]).to(kb.dtype))
        vb.index_copy_(0, loc.long(), v.view(-1, *vb.shape[1:]).to(vb.dtype))
    for i, n in enumerate((enc if cross else seq_lens).tolist()):
        lo = max(0, n - window) if window and window > 0 and not cross else 0
        idx = r2t[int(rpi[i]), lo:n].long()
        o[i] = _one(q[i : i + 1], kb[idx], vb[idx], scale, None, cap)[0]


def _extend(
    q,
    k,
    v,
    o,
    kb,
    vb,
    ks,
    vs,
    r2t,
    rpi,
    seq_lens,
    ext_lens,
    ext_start,
    max_ext,
    scale,
    cap,
    cross=False,
    window=0,
    enc=None,
    sinks=None,
    tree_mask=None,
    causal=True,
):
    off = 0
    for i, (n, e, st) in enumerate(zip(seq_lens.tolist(), ext_lens.tolist(), ext_start.tolist(), strict=False)):
        if e == 0:
            continue
        kv = int(enc[i]) if cross else n
        idx = r2t[int(rpi[i]), :kv].long()
        mask = None
        if not cross and causal:
            pre = n - e
            mask = torch.ones(e, n, dtype=torch.bool)
            if tree_mask is not None:
                mask[:, pre:] = tree_mask.reshape(-1)[off : off + e * e].view(e, e).bool()
                off += e * e
            else:
                mask[:, pre:] = torch.tril(mask[:, pre:])
            if window and window > 0:
                pos = torch.arange(pre, n)[:, None]
                mask &= torch.arange(n)[None] > pos - window
        o[st : st + e] = _one(q[st : st + e], kb[idx], vb[idx], scale, mask, cap)


_op(
    "decode_attention_cpu(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache, float k_scale, float v_scale, "
    "Tensor(c!) output, Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn=False, "
    "int sliding_window=0, Tensor? encoder_lens=None, Tensor? sinks=None) -> ()",
    _decode,
)
_op(
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor k_buffer, Tensor v_buffer, "
    "float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
    "bool is_cross_attn=False, int sliding_window=0, Tensor? encoder_lens=None, Tensor? sinks=None, "
    "Tensor? tree_mask=None, bool is_causal=True) -> ()",
    _extend,
)


def assign_req_to_token_pool_cpu(rpi, r2t, start, end, out, pool_len):
    p = 0
    for r, s, e in zip(rpi.tolist(), start.tolist(), end.tolist(), strict=False):
        r2t[r, s:e] = out[p : p + e - s].to(r2t.dtype)
        p += e - s


def assign_extend_cache_locs_cpu(rpi, r2t, start, end, out, pool_len):
    p = 0
    for r, s, e in zip(rpi.tolist(), start.tolist(), end.tolist(), strict=False):
        out[p : p + e - s] = r2t[r, s:e].to(out.dtype)
        p += e - s


def assign_draft_cache_locs_contiguous_cpu(rpi, r2t, seq_lens, out, pool_len, topk, steps):
    n = topk * steps
    for i, (r, s) in enumerate(zip(rpi.tolist(), seq_lens.tolist(), strict=False)):
        out[i * n : (i + 1) * n] = r2t[r, s : s + n].to(out.dtype)


def build_draft_decode_metadata_cpu(r2t, rpi, seq_lens, topk, steps, pool_len):
    out = torch.zeros((rpi.numel() * topk, pool_len), dtype=r2t.dtype)
    for b, (r, s) in enumerate(zip(rpi.tolist(), seq_lens.tolist(), strict=False)):
        for t in range(topk):
            row = out[b * topk + t]
            row[:s] = r2t[r, :s]
            w = min(steps, pool_len - s, pool_len - (s + t * steps))
            row[s : s + w] = r2t[r, s + t * steps : s + t * steps + w]
    return out


def copy_all_layer_kv_cache_cpu(ptrs, strides, tgt, src):
    t, s = tgt.tolist(), src.tolist()
    for base, st in zip(ptrs.tolist(), strides.tolist(), strict=False):
        rows = [ctypes.string_at(base + i * st, st) for i in s]
        for i, row in zip(t, rows, strict=False):
            ctypes.memmove(base + i * st, row, st)


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus, stride):
    n = accept_lens.numel()
    flat = accept_tokens.reshape(-1)
    bonus[:n] = flat[torch.arange(n) * stride + accept_lens.long() - 1].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(accept_index, out_loc, accept_out_loc, size=None):
    idx = accept_index.reshape(-1)
    idx = idx[idx > -1].long()
    accept_out_loc[: idx.numel()] = out_loc[idx]


def build_tree_kernel_efficient_cpu(
    parent_list, selected, seq_lens, mask, positions, r_index, r_next, r_sib, topk, depth, n, mode
):
    sl = seq_lens.tolist()
    flat, pos, ri = mask.view(-1), positions.view(-1), r_index.view(-1)
    nx, sb = r_next.view(-1), r_sib.view(-1)
    full = 0
    for b, L in enumerate(sl):
        sel, par = selected[b].tolist(), parent_list[b].tolist()
        where = {}
        for p, s in enumerate(sel[: n - 1]):
            where.setdefault(s, p)
        parent = [-1] * n  # position of each node's parent in the tree
        for i in range(1, n):
            tb = sel[i - 1] // topk
            parent[i] = 0 if tb == 0 else (where[par[tb]] + 1 if par[tb] in where else -1)
        nexts, sibs = [-1] * n, [-1] * n
        for i in range(n - 1, 0, -1):
            p = parent[i]
            if p >= 0:
                sibs[i], nexts[p] = nexts[p], i
        vis = torch.zeros(n, n, dtype=mask.dtype)
        deep = [0] * n
        vis[:, 0] = 1
        for i in range(1, n):
            j = i
            while j > 0:
                vis[i, j] = 1
                deep[i] += 1
                j = parent[j]
                if deep[i] >= depth:
                    break
        o = b * n
        pos[o : o + n] = torch.tensor(deep, dtype=pos.dtype) + L
        ri[o : o + n] = torch.arange(o, o + n, dtype=ri.dtype)
        nx[o : o + n] = torch.tensor(nexts, dtype=nx.dtype)
        sb[o : o + n] = torch.tensor(sibs, dtype=sb.dtype)
        if mode == 0:  # FULL_MASK: [n, L + n] rows
            blk = flat[full : full + n * (L + n)].view(n, L + n)
            blk[:, :L] = 1
            blk[:, L:] = vis
            full += n * (L + n)
        else:  # QLEN_ONLY
            flat[b * n * n : (b + 1) * n * n] = vis.view(-1)


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    cand, idx = candidates.tolist(), retrive_index.tolist()
    nxt, sib = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    tgt = target_predict.reshape(-1).tolist()
    width = accept_index.shape[1]
    for b in range(len(cand)):
        last = idx[b][0]
        path, cur = [last], 0
        while len(path) < width:
            cur = nxt[b][cur]
            while cur != -1 and cand[b][cur] != tgt[last]:
                cur = sib[b][cur]
            if cur == -1:
                break
            predicts[last] = tgt[last]
            last = idx[b][cur]
            path.append(last)
        predicts[last] = tgt[last]
        accept_index[b, : len(path)] = torch.tensor(path, dtype=accept_index.dtype)
        accept_token_num[b] = len(path) - 1


def rotate_input_ids_cpu(*a, **k):
    raise NotImplementedError("multi-layer EAGLE is outside the stand-in")
