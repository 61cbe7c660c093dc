# AOT ID: ['0_backward']
# Topologically Sorted Source Nodes: [div_1, flatten_1, unsqueeze_1, ne_3, cross_entropy, where_2, where_3, mul_15, exp_1, sum_4, mul_16, sub_5]
# Source node to ATen node mapping:
#   cross_entropy => full_default, full_default_1, sub_3, sub_4
#   div_1 => div_1
#   exp_1 => exp_1
#   flatten_1 => view_15
#   mul_15 => mul_15
#   mul_16 => mul_16
#   ne_3 => ne_3
#   sub_5 => sub_5
#   sum_4 => sum_4
#   unsqueeze_1 => unsqueeze_1
#   where_2 => where_2
#   where_3 => where_3
# Graph fragment:
#   return %sum_4,%sub_5
triton_per_0 = async_compile.triton(
    "triton_per_0",
    """
def triton_per_0(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [sum_5]
# Source node to ATen node mapping:
#   sum_5 => sum_5
# Graph fragment:
#   return %buf4
triton_red_1 = async_compile.triton(
    "triton_red_1",
    """
def triton_red_1(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK, R0_BLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [sum_5]
# Source node to ATen node mapping:
#   sum_5 => sum_5
# Graph fragment:
#   return %sum_5
triton_per_2 = async_compile.triton(
    "triton_per_2",
    """
def triton_per_2(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [view_19, view_20, sum_6]
# Source node to ATen node mapping:
#   sum_6 => sum_6
#   view_19 => view_19
#   view_20 => view_20
# Graph fragment:
#   return %buf8
triton_red_3 = async_compile.triton(
    "triton_red_3",
    """
def triton_red_3(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK, R0_BLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [view_19, view_20, sum_6]
# Source node to ATen node mapping:
#   sum_6 => sum_6
#   view_19 => view_19
#   view_20 => view_20
# Graph fragment:
#   return %sum_6
triton_per_4 = async_compile.triton(
    "triton_per_4",
    """
def triton_per_4(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [view_22, linear_4, gelu_2, mul_18, mul_19, mul_20, exp_2, mul_21, mul_22, add_13, mul_23, view_23, sum_7]
# Source node to ATen node mapping:
#   add_13 => add_13
#   exp_2 => exp_2
#   gelu_2 => add_10, erf_2, mul_13
#   linear_4 => view_9
#   mul_18 => mul_18
#   mul_19 => mul_19
#   mul_20 => mul_20
#   mul_21 => mul_21
#   mul_22 => mul_22
#   mul_23 => mul_23
#   sum_7 => sum_7
#   view_22 => view_22
#   view_23 => view_23
# Graph fragment:
#   return %mul_23,%buf13
triton_red_5 = async_compile.triton(
    "triton_red_5",
    """
def triton_red_5(in_out_ptr0, in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK, R0_BLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [view_22, linear_4, gelu_2, mul_18, mul_19, mul_20, exp_2, mul_21, mul_22, add_13, mul_23, view_23, sum_7]
# Source node to ATen node mapping:
#   add_13 => add_13
#   exp_2 => exp_2
#   gelu_2 => add_10, erf_2, mul_13
#   linear_4 => view_9
#   mul_18 => mul_18
#   mul_19 => mul_19
#   mul_20 => mul_20
#   mul_21 => mul_21
#   mul_22 => mul_22
#   mul_23 => mul_23
#   sum_7 => sum_7
#   view_22 => view_22
#   view_23 => view_23
# Graph fragment:
#   return %sum_7
triton_per_6 = async_compile.triton(
    "triton_per_6",
    """
def triton_per_6(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [view_19, view_25, mul_25, mul_26, sum_8, mul_27, sum_9, mul_28, sub_7, sub_8, mul_29, add_14]
# Source node to ATen node mapping:
#   add_14 => add_14
#   mul_25 => mul_25
#   mul_26 => mul_26
#   mul_27 => mul_27
#   mul_28 => mul_28
#   mul_29 => mul_29
#   sub_7 => sub_7
#   sub_8 => sub_8
#   sum_8 => sum_8
#   sum_9 => sum_9
#   view_19 => view_19
#   view_25 => view_25
# Graph fragment:
#   return %sum_8,%sum_9,%add_14
triton_per_7 = async_compile.triton(
    "triton_per_7",
    """
def triton_per_7(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [view_25, mul_30, sum_10, sum_11]
# Source node to ATen node mapping:
#   mul_30 => mul_30
#   sum_10 => sum_10
#   sum_11 => sum_11
#   view_25 => view_25
# Graph fragment:
#   return %buf17,%buf19
triton_red_8 = async_compile.triton(
    "triton_red_8",
    """
def triton_red_8(in_ptr0, in_ptr1, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK, R0_BLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [view_31, mul_39, mul_40, sum_14, linear_1, x, layer_norm_1, mul_41, sum_15, mul_42, sub_10, sub_11, div_3, mul_43, add_17]
# Source node to ATen node mapping:
#   add_17 => add_17
#   div_3 => div_3
#   layer_norm_1 => mul_5, sub_1
#   linear_1 => view_3
#   mul_39 => mul_39
#   mul_40 => mul_40
#   mul_41 => mul_41
#   mul_42 => mul_42
#   mul_43 => mul_43
#   sub_10 => sub_10
#   sub_11 => sub_11
#   sum_14 => sum_14
#   sum_15 => sum_15
#   view_31 => view_31
#   x => add_3
# Graph fragment:
#   return %sum_14,%sum_15,%add_17
triton_per_9 = async_compile.triton(
    "triton_per_9",
    """
def triton_per_9(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, xnumel, r0_numel, XBLOCK):
""",
    device_str="cuda",
)
# Topologically Sorted Source Nodes: [view_31, linear_1, x, layer_norm_1, mul_44, sum_16, sum_17, view_37, layer_norm, mul_57, sum_22, sum_23]
# Source node to ATen node mapping:
#   layer_norm => mul, sub
#   layer_norm_1 => mul_5, sub_1
#   linear_1 => view_3
#   mul_44 => mul_44
#   mul_57 => mul_57
#   sum_16 => sum_16
#   sum_17 => sum_17
#   sum_22 => sum_22
#   sum_23 => sum_23
#   view_31 => view_31
#   view_37 => view_37
#   x => add_3
# Graph fragment:
#   return %buf33,%buf35,%buf47,%buf49
triton_red_10 = async_compile.triton(
    "triton_red_10",
    """
def triton_red_10(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, in_ptr6, in_ptr7, out_ptr0, out_ptr1, out_ptr2, out_ptr3, xnumel, r0_numel, XBLOCK, R0_BLOCK):
""",
    device_str="cuda",
)


class Runner:
    def call(self, args):
        buf1 = addmm_6
        del addmm_6  # reuse
        # Topologically Sorted Source Nodes: [div_1, flatten_1, unsqueeze_1, ne_3, cross_entropy, where_2, where_3, mul_15, exp_1, sum_4, mul_16, sub_5]
        triton_per_0.run(buf1, primals_22, tangents_1, convert_element_type, amax, log, 2048, 1000, stream=stream0)
        buf2 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [linear_6, permute_7, mm]
        extern_kernels.mm(buf1, primals_20, out=buf2)
        buf3 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [permute_8, mm_1]
        extern_kernels.mm(reinterpret_tensor(buf1, (1000, 2048), (1, 1000), 0), view_12, out=buf3)
        buf4 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [sum_5]
        triton_red_1.run(buf1, buf4, 16000, 128, stream=stream0)
        buf5 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [sum_5]
        triton_per_2.run(buf4, buf5, 1000, 16, stream=stream0)
        buf6 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_19, view_20, linear_5, permute_11, mm_2]
        extern_kernels.mm(buf2, primals_18, out=buf6)
        buf7 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_19, view_20, permute_12, mm_3]
        extern_kernels.mm(reinterpret_tensor(buf2, (256, 2048), (1, 256), 0), view_10, out=buf7)
        buf8 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_19, view_20, sum_6]
        triton_red_3.run(buf2, buf8, 4096, 128, stream=stream0)
        buf9 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_19, view_20, sum_6]
        triton_per_4.run(buf8, buf9, 256, 16, stream=stream0)
        buf10 = reinterpret_tensor(buf6, (16, 128, 1024), (131072, 1024, 1), 0)
        del buf6  # reuse
        buf13 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_22, linear_4, gelu_2, mul_18, mul_19, mul_20, exp_2, mul_21, mul_22, add_13, mul_23, view_23, sum_7]
        triton_red_5.run(buf10, addmm_4, buf13, 16384, 128, stream=stream0)
        buf11 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_22, linear_4, gelu_2, mul_18, mul_19, mul_20, exp_2, mul_21, mul_22, add_13, mul_23, view_23, permute_15, mm_4]
        extern_kernels.mm(reinterpret_tensor(buf10, (2048, 1024), (1024, 1), 0), primals_16, out=buf11)
        buf12 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_22, linear_4, gelu_2, mul_18, mul_19, mul_20, exp_2, mul_21, mul_22, add_13, mul_23, view_23, permute_16, mm_5]
        extern_kernels.mm(reinterpret_tensor(buf10, (1024, 2048), (1, 1024), 0), view_8, out=buf12)
        buf14 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_22, linear_4, gelu_2, mul_18, mul_19, mul_20, exp_2, mul_21, mul_22, add_13, mul_23, view_23, sum_7]
        triton_per_6.run(buf13, buf14, 1024, 16, stream=stream0)
        buf21 = reinterpret_tensor(buf2, (16, 128, 256), (32768, 256, 1), 0)
        del buf2  # reuse
        # Topologically Sorted Source Nodes: [view_19, view_25, mul_25, mul_26, sum_8, mul_27, sum_9, mul_28, sub_7, sub_8, mul_29, add_14]
        triton_per_7.run(buf21, buf11, primals_14, mul_10, div_2, 2048, 256, stream=stream0)
        buf17 = reinterpret_tensor(buf8, (256, 16), (1, 256), 0)
        del buf8  # reuse
        buf19 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_25, mul_30, sum_10, sum_11]
        triton_red_8.run(buf11, mul_10, buf17, buf19, 4096, 128, stream=stream0)
        buf18 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_25, mul_30, sum_10]
        triton_per_4.run(buf17, buf18, 256, 16, stream=stream0)
        buf20 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_25, sum_11]
        triton_per_4.run(buf19, buf20, 256, 16, stream=stream0)
        buf22 = reinterpret_tensor(buf10, (2048, 1024), (1024, 1), 0)
        del buf10  # reuse
        # Topologically Sorted Source Nodes: [view_26, linear_3, permute_19, mm_6]
        extern_kernels.mm(reinterpret_tensor(buf21, (2048, 256), (256, 1), 0), primals_12, out=buf22)
        buf23 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_26, permute_20, mm_7]
        extern_kernels.mm(reinterpret_tensor(buf21, (256, 2048), (1, 256), 0), view_6, out=buf23)
        buf24 = reinterpret_tensor(buf19, (1, 256, 16), (4096, 1, 256), 0)
        del buf19  # reuse
        # Topologically Sorted Source Nodes: [view_26, sum_12]
        triton_red_3.run(buf21, buf24, 4096, 128, stream=stream0)
        buf25 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_26, sum_12]
        triton_per_4.run(buf24, buf25, 256, 16, stream=stream0)
        buf26 = reinterpret_tensor(buf22, (16, 128, 1024), (131072, 1024, 1), 0)
        del buf22  # reuse
        buf29 = buf13
        del buf13  # reuse
        # Topologically Sorted Source Nodes: [view_28, linear_2, gelu_1, mul_32, mul_33, mul_34, exp_3, mul_35, mul_36, add_16, mul_37, view_29, sum_13]
        triton_red_5.run(buf26, addmm_2, buf29, 16384, 128, stream=stream0)
        buf27 = buf11
        del buf11  # reuse
        # Topologically Sorted Source Nodes: [view_28, linear_2, gelu_1, mul_32, mul_33, mul_34, exp_3, mul_35, mul_36, add_16, mul_37, view_29, permute_23, mm_8]
        extern_kernels.mm(reinterpret_tensor(buf26, (2048, 1024), (1024, 1), 0), primals_10, out=buf27)
        buf28 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_28, linear_2, gelu_1, mul_32, mul_33, mul_34, exp_3, mul_35, mul_36, add_16, mul_37, view_29, permute_24, mm_9]
        extern_kernels.mm(reinterpret_tensor(buf26, (1024, 2048), (1, 1024), 0), view_4, out=buf28)
        buf30 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_28, linear_2, gelu_1, mul_32, mul_33, mul_34, exp_3, mul_35, mul_36, add_16, mul_37, view_29, sum_13]
        triton_per_6.run(buf29, buf30, 1024, 16, stream=stream0)
        buf37 = buf21
        del buf21  # reuse
        # Topologically Sorted Source Nodes: [view_31, mul_39, mul_40, sum_14, linear_1, x, layer_norm_1, mul_41, sum_15, mul_42, sub_10, sub_11, div_3, mul_43, add_17]
        triton_per_9.run(buf37, buf27, primals_8, primals_3, addmm_1, getitem_3, rsqrt_1, 2048, 256, stream=stream0)
        buf38 = reinterpret_tensor(buf26, (2048, 1024), (1024, 1), 0)
        del buf26  # reuse
        # Topologically Sorted Source Nodes: [view_32, linear_1, permute_27, mm_10]
        extern_kernels.mm(reinterpret_tensor(buf37, (2048, 256), (256, 1), 0), primals_6, out=buf38)
        buf42 = reinterpret_tensor(buf38, (16, 128, 1024), (131072, 1024, 1), 0)
        del buf38  # reuse
        buf45 = buf29
        del buf29  # reuse
        # Topologically Sorted Source Nodes: [view_34, linear, gelu, mul_46, mul_47, mul_48, exp_4, mul_49, mul_50, add_19, mul_51, view_35, sum_19]
        triton_red_5.run(buf42, addmm, buf45, 16384, 128, stream=stream0)
        buf43 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_34, linear, gelu, mul_46, mul_47, mul_48, exp_4, mul_49, mul_50, add_19, mul_51, view_35, permute_31, mm_12]
        extern_kernels.mm(reinterpret_tensor(buf42, (2048, 1024), (1024, 1), 0), primals_4, out=buf43)
        buf33 = reinterpret_tensor(buf24, (256, 16), (1, 256), 0)
        del buf24  # reuse
        buf35 = buf17
        del buf17  # reuse
        buf47 = empty_strided_cuda((), (), torch.float32)
        buf49 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_31, linear_1, x, layer_norm_1, mul_44, sum_16, sum_17, view_37, layer_norm, mul_57, sum_22, sum_23]
        triton_red_10.run(
            buf27,
            primals_3,
            addmm_1,
            getitem_3,
            rsqrt_1,
            buf43,
            getitem_1,
            rsqrt,
            buf33,
            buf35,
            buf47,
            buf49,
            4096,
            128,
            stream=stream0,
        )
        buf34 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_31, linear_1, x, layer_norm_1, mul_44, sum_16]
        triton_per_4.run(buf33, buf34, 256, 16, stream=stream0)
        buf36 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_31, sum_17]
        triton_per_4.run(buf35, buf36, 256, 16, stream=stream0)
        buf39 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_32, permute_28, mm_11]
        extern_kernels.mm(reinterpret_tensor(buf37, (256, 2048), (1, 256), 0), view_2, out=buf39)
        buf40 = reinterpret_tensor(buf35, (1, 256, 16), (4096, 1, 256), 0)
        del buf35  # reuse
        # Topologically Sorted Source Nodes: [view_32, sum_18]
        triton_red_3.run(buf37, buf40, 4096, 128, stream=stream0)
        buf41 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_32, sum_18]
        triton_per_4.run(buf40, buf41, 256, 16, stream=stream0)
        buf44 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_34, linear, gelu, mul_46, mul_47, mul_48, exp_4, mul_49, mul_50, add_19, mul_51, view_35, permute_32, mm_13]
        extern_kernels.mm(reinterpret_tensor(buf42, (1024, 2048), (1, 1024), 0), view, out=buf44)
        buf46 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_34, linear, gelu, mul_46, mul_47, mul_48, exp_4, mul_49, mul_50, add_19, mul_51, view_35, sum_19]
        triton_per_6.run(buf45, buf46, 1024, 16, stream=stream0)
        buf48 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_37, layer_norm, mul_57, sum_22]
        triton_per_4.run(buf47, buf48, 256, 16, stream=stream0)
        buf50 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [view_37, sum_23]
        triton_per_4.run(buf49, buf50, 256, 16, stream=stream0)
        return (
            buf48,
            buf50,
            None,
            buf44,
            reinterpret_tensor(buf46, (1024,), (1,), 0),
            buf39,
            reinterpret_tensor(buf41, (256,), (1,), 0),
            buf34,
            buf36,
            buf28,
            reinterpret_tensor(buf30, (1024,), (1,), 0),
            buf23,
            reinterpret_tensor(buf25, (256,), (1,), 0),
            buf18,
            buf20,
            buf12,
            reinterpret_tensor(buf14, (1024,), (1,), 0),
            buf7,
            reinterpret_tensor(buf9, (256,), (1,), 0),
            buf3,
            reinterpret_tensor(buf5, (1000,), (1,), 0),
            None,
        )


runner = Runner(partitions=[])
call = runner.call
recursively_apply_fns = runner.recursively_apply_fns
