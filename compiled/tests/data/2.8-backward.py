# AOT ID: ['0_backward']
# Topologically Sorted Source Nodes: [cross_entropy]
# Source node to ATen node mapping:
#   cross_entropy => full_default, full_default_1, sub_3, sub_4
# Graph fragment:
triton_per_0 = async_compile.triton('triton_per_0', '''
def triton_per_0(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, xnumel, r0_numel):
''', device_str='cuda')
# Topologically Sorted Source Nodes: []
# Source node to ATen node mapping:
# Graph fragment:
triton_red_1 = async_compile.triton('triton_red_1', '''
def triton_red_1(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK, R0_BLOCK):
''', device_str='cuda')
# Topologically Sorted Source Nodes: []
# Source node to ATen node mapping:
# Graph fragment:
triton_per_2 = async_compile.triton('triton_per_2', '''
def triton_per_2(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK):
''', device_str='cuda')
# Topologically Sorted Source Nodes: []
# Source node to ATen node mapping:
# Graph fragment:
triton_red_3 = async_compile.triton('triton_red_3', '''
def triton_red_3(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK, R0_BLOCK):
''', device_str='cuda')
# Topologically Sorted Source Nodes: []
# Source node to ATen node mapping:
# Graph fragment:
triton_per_4 = async_compile.triton('triton_per_4', '''
def triton_per_4(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK):
''', device_str='cuda')
# Topologically Sorted Source Nodes: [gelu_2]
# Source node to ATen node mapping:
#   gelu_2 => add_10, erf_2, mul_13
# Graph fragment:
triton_poi_5 = async_compile.triton('triton_poi_5', '''
def triton_poi_5(in_out_ptr0, in_ptr0, xnumel, XBLOCK):
''', device_str='cuda')
# Topologically Sorted Source Nodes: []
# Source node to ATen node mapping:
# Graph fragment:
triton_red_6 = async_compile.triton('triton_red_6', '''
def triton_red_6(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK, R0_BLOCK):
''', device_str='cuda')
# Topologically Sorted Source Nodes: []
# Source node to ATen node mapping:
# Graph fragment:
triton_per_7 = async_compile.triton('triton_per_7', '''
def triton_per_7(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK):
''', device_str='cuda')
# Topologically Sorted Source Nodes: []
# Source node to ATen node mapping:
# Graph fragment:
triton_per_8 = async_compile.triton('triton_per_8', '''
def triton_per_8(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, xnumel, r0_numel):
''', device_str='cuda')
# Topologically Sorted Source Nodes: []
# Source node to ATen node mapping:
# Graph fragment:
triton_red_9 = async_compile.triton('triton_red_9', '''
def triton_red_9(in_ptr0, in_ptr1, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK, R0_BLOCK):
''', device_str='cuda')
# Topologically Sorted Source Nodes: [x, layer_norm_1]
# Source node to ATen node mapping:
#   layer_norm_1 => mul_5, sub_1
#   x => add_3
# Graph fragment:
triton_per_10 = async_compile.triton('triton_per_10', '''
def triton_per_10(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, xnumel, r0_numel):
''', device_str='cuda')
# Topologically Sorted Source Nodes: [x, layer_norm_1, layer_norm]
# Source node to ATen node mapping:
#   layer_norm => mul, sub
#   layer_norm_1 => mul_5, sub_1
#   x => add_3
# Graph fragment:
triton_red_11 = async_compile.triton('triton_red_11', '''
def triton_red_11(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, in_ptr5, in_ptr6, in_ptr7, out_ptr0, out_ptr1, out_ptr2, out_ptr3, xnumel, r0_numel, XBLOCK, R0_BLOCK):
''', device_str='cuda')
def call(args):
        buf1 = addmm_6; del addmm_6  # reuse
        # Topologically Sorted Source Nodes: [cross_entropy]
        triton_per_0.run(buf1, primals_22, tangents_1, convert_element_type, amax, log, 2048, 1000, stream=stream0)
        buf2 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(buf1, primals_20, out=buf2)
        buf3 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf1, (1000, 2048), (1, 1000), 0), view_12, out=buf3)
        buf4 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_red_1.run(buf1, buf4, 16000, 128, stream=stream0)
        buf5 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_2.run(buf4, buf5, 1000, 16, stream=stream0)
        buf6 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(buf2, primals_18, out=buf6)
        buf7 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf2, (256, 2048), (1, 256), 0), view_10, out=buf7)
        buf8 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_red_3.run(buf2, buf8, 4096, 128, stream=stream0)
        buf9 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_4.run(buf8, buf9, 256, 16, stream=stream0)
        buf10 = reinterpret_tensor(buf6, (16, 128, 1024), (131072, 1024, 1), 0); del buf6  # reuse
        # Topologically Sorted Source Nodes: [gelu_2]
        triton_poi_5.run(buf10, addmm_4, 2097152, stream=stream0)
        buf11 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf10, (2048, 1024), (1024, 1), 0), primals_16, out=buf11)
        buf12 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf10, (1024, 2048), (1, 1024), 0), view_8, out=buf12)
        buf13 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_red_6.run(buf10, buf13, 16384, 128, stream=stream0)
        buf14 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_7.run(buf13, buf14, 1024, 16, stream=stream0)
        buf21 = reinterpret_tensor(buf2, (16, 128, 256), (32768, 256, 1), 0); del buf2  # reuse
        # Topologically Sorted Source Nodes: []
        triton_per_8.run(buf21, buf11, primals_14, mul_10, div_2, 2048, 256, stream=stream0)
        buf17 = reinterpret_tensor(buf8, (256, 16), (1, 256), 0); del buf8  # reuse
        buf19 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_red_9.run(buf11, mul_10, buf17, buf19, 4096, 128, stream=stream0)
        buf18 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_4.run(buf17, buf18, 256, 16, stream=stream0)
        buf20 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_4.run(buf19, buf20, 256, 16, stream=stream0)
        buf22 = reinterpret_tensor(buf10, (2048, 1024), (1024, 1), 0); del buf10  # reuse
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf21, (2048, 256), (256, 1), 0), primals_12, out=buf22)
        buf23 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf21, (256, 2048), (1, 256), 0), view_6, out=buf23)
        buf24 = reinterpret_tensor(buf19, (1, 256, 16), (4096, 1, 256), 0); del buf19  # reuse
        # Topologically Sorted Source Nodes: []
        triton_red_3.run(buf21, buf24, 4096, 128, stream=stream0)
        buf25 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_4.run(buf24, buf25, 256, 16, stream=stream0)
        buf26 = reinterpret_tensor(buf22, (16, 128, 1024), (131072, 1024, 1), 0); del buf22  # reuse
        # Topologically Sorted Source Nodes: [gelu_1]
        triton_poi_5.run(buf26, addmm_2, 2097152, stream=stream0)
        buf27 = buf11; del buf11  # reuse
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf26, (2048, 1024), (1024, 1), 0), primals_10, out=buf27)
        buf28 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf26, (1024, 2048), (1, 1024), 0), view_4, out=buf28)
        buf29 = buf13; del buf13  # reuse
        # Topologically Sorted Source Nodes: []
        triton_red_6.run(buf26, buf29, 16384, 128, stream=stream0)
        buf30 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_7.run(buf29, buf30, 1024, 16, stream=stream0)
        buf37 = buf21; del buf21  # reuse
        # Topologically Sorted Source Nodes: [x, layer_norm_1]
        triton_per_10.run(buf37, buf27, primals_8, primals_3, addmm_1, getitem_3, rsqrt_1, 2048, 256, stream=stream0)
        buf38 = reinterpret_tensor(buf26, (2048, 1024), (1024, 1), 0); del buf26  # reuse
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf37, (2048, 256), (256, 1), 0), primals_6, out=buf38)
        buf42 = reinterpret_tensor(buf38, (16, 128, 1024), (131072, 1024, 1), 0); del buf38  # reuse
        # Topologically Sorted Source Nodes: [gelu]
        triton_poi_5.run(buf42, addmm, 2097152, stream=stream0)
        buf43 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf42, (2048, 1024), (1024, 1), 0), primals_4, out=buf43)
        buf33 = reinterpret_tensor(buf24, (256, 16), (1, 256), 0); del buf24  # reuse
        buf35 = buf17; del buf17  # reuse
        buf47 = empty_strided_cuda((), (), torch.float32)
        buf49 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [x, layer_norm_1, layer_norm]
        triton_red_11.run(buf27, primals_3, addmm_1, getitem_3, rsqrt_1, buf43, getitem_1, rsqrt, buf33, buf35, buf47, buf49, 4096, 128, stream=stream0)
        buf34 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [x, layer_norm_1]
        triton_per_4.run(buf33, buf34, 256, 16, stream=stream0)
        buf36 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_4.run(buf35, buf36, 256, 16, stream=stream0)
        buf39 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf37, (256, 2048), (1, 256), 0), view_2, out=buf39)
        buf40 = reinterpret_tensor(buf35, (1, 256, 16), (4096, 1, 256), 0); del buf35  # reuse
        # Topologically Sorted Source Nodes: []
        triton_red_3.run(buf37, buf40, 4096, 128, stream=stream0)
        buf41 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_4.run(buf40, buf41, 256, 16, stream=stream0)
        buf44 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        extern_kernels.mm(reinterpret_tensor(buf42, (1024, 2048), (1, 1024), 0), view, out=buf44)
        buf45 = buf29; del buf29  # reuse
        # Topologically Sorted Source Nodes: []
        triton_red_6.run(buf42, buf45, 16384, 128, stream=stream0)
        buf46 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_7.run(buf45, buf46, 1024, 16, stream=stream0)
        buf48 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: [layer_norm]
        triton_per_4.run(buf47, buf48, 256, 16, stream=stream0)
        buf50 = empty_strided_cuda((), (), torch.float32)
        # Topologically Sorted Source Nodes: []
        triton_per_4.run(buf49, buf50, 256, 16, stream=stream0)
    return (buf48, buf50, None, buf44, reinterpret_tensor(buf46, (1024, ), (1, ), 0), buf39, reinterpret_tensor(buf41, (256, ), (1, ), 0), buf34, buf36, buf28, reinterpret_tensor(buf30, (1024, ), (1, ), 0), buf23, reinterpret_tensor(buf25, (256, ), (1, ), 0), buf18, buf20, buf12, reinterpret_tensor(buf14, (1024, ), (1, ), 0), buf7, reinterpret_tensor(buf9, (256, ), (1, ), 0), buf3, reinterpret_tensor(buf5, (1000, ), (1, ), 0), None, )
