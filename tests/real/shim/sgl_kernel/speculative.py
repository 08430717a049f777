"""Stand-in for `sgl_kernel.speculative`: the one operator that SGLang imports from there on the CPU."""

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask, seq_lens, positions, retrieve_index, retrieve_next_token, retrieve_next_sibling, batch_size, nodes
):
    """Depth, index, first child and next sibling of every node, read off the visibility mask of the draft tree."""
    masks = tree_mask.view(batch_size, nodes, nodes).bool()
    for request in range(batch_size):
        ancestors = torch.tril(masks[request], -1)
        where = slice(request * nodes, (request + 1) * nodes)
        positions.view(-1)[where] = ancestors.sum(1) + int(seq_lens[request])
        retrieve_index.view(-1)[where] = torch.arange(where.start, where.stop)
        parents = [max((j for j in range(i) if ancestors[i, j]), default=-1) for i in range(nodes)]
        first_child, next_sibling = [-1] * nodes, [-1] * nodes
        for node in reversed(range(nodes)):
            parent = parents[node]
            if parent >= 0:
                next_sibling[node], first_child[parent] = first_child[parent], node
        retrieve_next_token.view(-1)[where] = torch.tensor(first_child)
        retrieve_next_sibling.view(-1)[where] = torch.tensor(next_sibling)
