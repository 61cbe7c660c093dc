# AOT ID: ['0_forward']
# Topologically Sorted Source Nodes: [layer_norm]
# Source node to ATen node mapping:
#   layer_norm => add, add_1, mul, mul_1, rsqrt, sub, var_mean
# Graph fragment:
#   return %getitem_1,%buf1,%rsqrt,%add_1
triton_per_0 = async_compile.triton(
    "triton_per_0",
    """
def triton_per_0(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [linear, gelu]
# Source node to ATen node mapping:
#   gelu => add_2, erf, mul_2, mul_3, mul_4
#   linear => view_1
# Graph fragment:
#   return %mul_4
triton_poi_1 = async_compile.triton(
    "triton_poi_1",
    """
def triton_poi_1(in_ptr0, out_ptr0, xnumel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [linear_1, x, layer_norm_1]
# Source node to ATen node mapping:
#   layer_norm_1 => add_4, add_5, mul_5, mul_6, rsqrt_1, sub_1, var_mean_1
#   linear_1 => view_3
#   x => add_3
# Graph fragment:
#   return %getitem_3,%buf9,%rsqrt_1,%add_5
triton_per_2 = async_compile.triton(
    "triton_per_2",
    """
def triton_per_2(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [linear_1, x, linear_3, x_1, layer_norm_2, div_2]
# Source node to ATen node mapping:
#   div_2 => div_2
#   layer_norm_2 => add_8, add_9, mul_10, mul_11, rsqrt_2, sub_2, var_mean_2
#   linear_1 => view_3
#   linear_3 => add_tensor_1, view_7
#   x => add_3
#   x_1 => add_7
# Graph fragment:
#   return %getitem_5,%buf17,%mul_10,%add_9,%div_2
triton_per_3 = async_compile.triton(
    "triton_per_3",
    """
def triton_per_3(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, out_ptr2, out_ptr3, out_ptr4, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [linear_1, x, linear_3, x_1, linear_5, x_2]
# Source node to ATen node mapping:
#   linear_1 => view_3
#   linear_3 => add_tensor_1, view_7
#   linear_5 => add_tensor, view_11
#   x => add_3
#   x_1 => add_7
#   x_2 => add_11
# Graph fragment:
#   return %add_11
triton_poi_4 = async_compile.triton(
    "triton_poi_4",
    """
def triton_poi_4(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, xnumel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [cross_entropy]
# Source node to ATen node mapping:
#   cross_entropy => log
# Graph fragment:
#   return %getitem_6,%getitem_7,%log
triton_per_5 = async_compile.triton(
    "triton_per_5",
    """
def triton_per_5(in_out_ptr0, in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [flatten_1, cross_entropy]
# Source node to ATen node mapping:
#   cross_entropy => convert_element_type, div, full_default, full_default_1, gather, ne, ne_2, neg, squeeze, sub_4, sub_tensor, sum_2, sum_3, unsqueeze, where, where_1
#   flatten_1 => view_15
# Graph fragment:
#   return %sum_2,%sum_3,%convert_element_type,%div
triton_red_6 = async_compile.triton(
    "triton_red_6",
    """
def triton_red_6(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, out_ptr1, xnumel, r0_numel, XBLOCK, R0_BLOCK):
""",
    device_str="cuda",
)


class Runner:
    def call(self, args):
        buf0 = empty_strided_cuda((), (), torch.float32)
        buf1 = empty_strided_cuda((), (), torch.float32)
        buf3 = reinterpret_tensor(buf1, (16, 128, 1), (128, 1, 1), 0)
        del buf1  # reuse
        buf4 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [layer_norm]
        triton_per_0.run(buf3, primals_3, primals_1, primals_2, buf0, buf4, 2048, 256, stream=raw_stream0)
        buf5 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [layer_norm, linear]
        extern_kernels.addmm(
            primals_5,
            reinterpret_tensor(buf4, (2048, 256), (256, 1), 0),
            reinterpret_tensor(primals_4, (256, 1024), (1, 256), 0),
            alpha=1,
            beta=1,
            out=buf5,
        )
        buf6 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear, gelu]
        triton_poi_1.run(buf5, buf6, 2097152, stream=raw_stream0)
        buf7 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear, gelu, linear_1]
        extern_kernels.addmm(
            primals_7,
            reinterpret_tensor(buf6, (2048, 1024), (1024, 1), 0),
            reinterpret_tensor(primals_6, (1024, 256), (1, 1024), 0),
            alpha=1,
            beta=1,
            out=buf7,
        )
        buf8 = empty_strided_cuda((), (), torch.float32)
        buf9 = empty_strided_cuda((), (), torch.float32)
        buf11 = reinterpret_tensor(buf9, (16, 128, 1), (128, 1, 1), 0)
        del buf9  # reuse
        buf12 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear_1, x, layer_norm_1]
        triton_per_2.run(buf11, primals_3, buf7, primals_8, primals_9, buf8, buf12, 2048, 256, stream=raw_stream0)
        buf13 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear_1, x, layer_norm_1, linear_2]
        extern_kernels.addmm(
            primals_11,
            reinterpret_tensor(buf12, (2048, 256), (256, 1), 0),
            reinterpret_tensor(primals_10, (256, 1024), (1, 256), 0),
            alpha=1,
            beta=1,
            out=buf13,
        )
        buf14 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear_2, gelu_1]
        triton_poi_1.run(buf13, buf14, 2097152, stream=raw_stream0)
        buf15 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear_2, gelu_1, linear_3]
        extern_kernels.mm(
            reinterpret_tensor(buf14, (2048, 1024), (1024, 1), 0),
            reinterpret_tensor(primals_12, (1024, 256), (1, 1024), 0),
            out=buf15,
        )
        buf19 = empty_strided_cuda((), (), torch.float32)
        buf20 = empty_strided_cuda((), (), torch.float32)
        buf32 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear_1, x, linear_3, x_1, layer_norm_2, div_2]
        triton_per_3.run(
            primals_3, buf7, primals_13, buf15, primals_14, primals_15, buf19, buf20, buf32, 2048, 256, stream=raw_stream0
        )
        buf21 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [layer_norm_2, linear_4]
        extern_kernels.addmm(
            primals_17,
            reinterpret_tensor(buf20, (2048, 256), (256, 1), 0),
            reinterpret_tensor(primals_16, (256, 1024), (1, 256), 0),
            alpha=1,
            beta=1,
            out=buf21,
        )
        buf22 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear_4, gelu_2]
        triton_poi_1.run(buf21, buf22, 2097152, stream=raw_stream0)
        buf23 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear_4, gelu_2, linear_5]
        extern_kernels.mm(
            reinterpret_tensor(buf22, (2048, 1024), (1024, 1), 0),
            reinterpret_tensor(primals_18, (1024, 256), (1, 1024), 0),
            out=buf23,
        )
        buf24 = reinterpret_tensor(buf15, (16, 128, 256), (32768, 256, 1), 0)
        del buf15  # reuse
        # Topologically Sorted Source Nodes: [linear_1, x, linear_3, x_1, linear_5, x_2]
        triton_poi_4.run(buf24, primals_3, buf7, primals_13, primals_19, buf23, 524288, stream=raw_stream0)
        buf25 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear_1, x, linear_3, x_1, linear_5, x_2, linear_6]
        extern_kernels.addmm(
            primals_21,
            reinterpret_tensor(buf24, (2048, 256), (256, 1), 0),
            reinterpret_tensor(primals_20, (256, 1000), (1, 256), 0),
            alpha=1,
            beta=1,
            out=buf25,
        )
        buf26 = empty_strided_cuda((), (), torch.float32)
        buf27 = empty_strided_cuda((), (), torch.float32)
        buf28 = reinterpret_tensor(buf27, (2048, 1), (1, 1), 0)
        del buf27  # reuse
        # Topologically Sorted Source Nodes: [cross_entropy]
        triton_per_5.run(buf28, buf25, buf26, 2048, 1000, stream=raw_stream0)
        buf31 = empty_strided_cuda((), (), torch.float32)
        buf30 = empty_strided_cuda((), (), torch.float32)
        buf33 = buf31
        del buf31  # reuse
        # Topologically Sorted Source Nodes: [flatten_1, cross_entropy]
        triton_red_6.run(buf33, primals_22, buf25, buf26, buf28, buf30, 1, 2048, stream=raw_stream0)
        return (
            buf33,
            primals_3,
            primals_4,
            primals_6,
            primals_8,
            primals_10,
            primals_12,
            primals_14,
            primals_16,
            primals_18,
            primals_20,
            primals_22,
            buf0,
            buf3,
            reinterpret_tensor(buf4, (2048, 256), (256, 1), 0),
            buf5,
            reinterpret_tensor(buf6, (2048, 1024), (1024, 1), 0),
            buf7,
            buf8,
            buf11,
            reinterpret_tensor(buf12, (2048, 256), (256, 1), 0),
            buf13,
            reinterpret_tensor(buf14, (2048, 1024), (1024, 1), 0),
            buf19,
            reinterpret_tensor(buf20, (2048, 256), (256, 1), 0),
            buf21,
            reinterpret_tensor(buf22, (2048, 1024), (1024, 1), 0),
            reinterpret_tensor(buf24, (2048, 256), (256, 1), 0),
            buf25,
            buf26,
            buf28,
            buf30,
            buf32,
        )


runner = Runner(partitions=[])
call = runner.call
recursively_apply_fns = runner.recursively_apply_fns
