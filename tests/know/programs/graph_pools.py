"""A server that captures a CUDA graph for each new shape.

Arguments, in any order: `shared` captures all graphs with one pool; `dropped` deletes the graphs at the end.
"""

import json
import sys

import torch
from torch import nn


class Graphs:
    def __init__(self, model, pool):
        self.model, self.pool, self.of_shape = model, pool, {}

    @torch.no_grad()
    def __call__(self, batch):
        if batch.shape not in self.of_shape:
            inputs = batch.clone()
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                self.model(inputs)
            torch.cuda.current_stream().wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                outputs = self.model(inputs)
            self.of_shape[batch.shape] = graph, inputs, outputs
        graph, inputs, outputs = self.of_shape[batch.shape]
        inputs.copy_(batch)
        graph.replay()
        return outputs.clone()


layers = [nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512)) for _ in range(3)]
model = nn.Sequential(*layers).cuda().eval()
serve = Graphs(model, torch.cuda.graph_pool_handle() if "shared" in sys.argv else None)
for length in range(64, 64 + 12 * 16, 16):
    serve(torch.randn(8, length, 512, device="cuda"))
if "dropped" in sys.argv:
    serve.of_shape.clear()
segments = torch.cuda.memory_snapshot()
private = [segment for segment in segments if tuple(segment["segment_pool_id"]) != (0, 0)]
print(
    json.dumps(
        {
            "reserved": torch.cuda.max_memory_reserved(),
            "private": sum(segment["total_size"] for segment in private),
            "in_no_tensor": sum(segment["total_size"] - segment["allocated_size"] for segment in private),
            "pools": len({tuple(segment["segment_pool_id"]) for segment in private}),
        }
    )
)
