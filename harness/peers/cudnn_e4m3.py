"""cuDNN's attention of e4m3, by its Python frontend (PyPI: nvidia-cudnn-frontend): PyTorch has no
operator for it."""


def load():
    """The frontend, or None where it is not installed."""
    try:
        import cudnn
        return cudnn
    except (ImportError, OSError):
        return None


def forward(torch, q, k, v, scale, causal):
    """A call that computes o for q, k and v of [batch][length][heads][dim], e4m3, and one that
    gives o in bf16. On compute capability 9.0 o is written in e4m3, here 64 times as large. The
    scales of the inputs are 1. Weights are multiplied with 256 before they are rounded, and lse is
    written, as ours does it."""
    cudnn = load()
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FP8_E4M3,
                          intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT)

    def factor(value):
        return torch.full((1, 1, 1, 1), value, device=q.device)

    def declared(tensor, kind):
        return graph.tensor(dim=list(tensor.shape), stride=list(tensor.stride()), data_type=kind)
    of_weights, of_o = 256.0, 64.0
    heads_first = [each.transpose(1, 2) for each in (q, k, v)]
    factors = [factor(each) for each in (1.0, 1.0, 1.0, 1 / of_weights, of_weights, of_o)]
    inputs = ([declared(each, cudnn.data_type.FP8_E4M3) for each in heads_first]
              + [declared(each, cudnn.data_type.FLOAT) for each in factors])
    names = "q k v descale_q descale_k descale_v descale_s scale_s scale_o".split()
    outputs = graph.sdpa_fp8(**dict(zip(names, inputs)), is_inference=False, attn_scale=scale,
                             use_causal_mask=bool(causal))
    o = torch.empty_like(q)
    lse = torch.empty(*heads_first[0].shape[:3], 1, device=q.device)
    written = [o.transpose(1, 2), lse, factor(0.0), factor(0.0)]  # and the greatest weight and o
    kinds = [cudnn.data_type.FP8_E4M3] + 3 * [cudnn.data_type.FLOAT]
    for output, tensor, kind in zip(outputs, written, kinds):
        output.set_output(True).set_dim(list(tensor.shape)).set_stride(list(tensor.stride()))
        output.set_data_type(kind)
    graph.build([cudnn.heur_mode.A])
    memory = dict(zip([*inputs, *outputs], [*heads_first, *factors, *written]))
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=q.device)
    handles = {}  # by stream

    def run():
        stream = torch.cuda.current_stream().cuda_stream
        if stream not in handles:
            handles[stream] = cudnn.create_handle()
            cudnn.set_stream(handle=handles[stream], stream=stream)
        graph.execute(memory, workspace, handle=handles[stream])
        return o
    return run, lambda: run().bfloat16() / of_o
