"""Moving memory that a program maps with its own calls, shares, or has on several devices and in several contexts."""

from moving import PAGE, Console, is_right, movable


def test_programs_that_map_memory_themselves(memlab):
    with Console(memlab) as program:
        movable(program)
        free = program.do("free_bytes()")
        for number in range(5):
            program.cycle()
            is_right(program)
            # THEN handles are unchanged, also when they are retained again
            assert program.do("properties(handle)") == [1, 0, 1, 0]
            assert program.do("kept = asked('cuMemRetainAllocationHandle', at + 5)", "kept == handle")
            program.do("call('cuMemRelease', kept)")
            # AND memory can be unmapped and mapped elsewhere, also while it is partly offloaded
            start = program.do("at")
            program.succeed("offload", ranges=[[start, PAGE]])
            program.do("call('cuMemUnmap', at, 2 * PAGE)", "attach(at + 2 * PAGE, 2 * PAGE, handle)")
            program.do("own.check(at + 2 * PAGE)", "call('cuMemUnmap', at + 2 * PAGE, 2 * PAGE)")
            if number % 2:
                program.succeed("restore")  # It has no mapping now.
            program.do("attach(at, 2 * PAGE, handle)", "check()")
            if not number % 2:
                program.succeed("restore")
            assert program.do("free_bytes()") == free
        # AND unmapping a part, or memory that was allocated otherwise, fails as always
        for wrong in ("at, PAGE", "at + PAGE, PAGE", "small.address, PAGE", "at, 3 * PAGE"):
            program.do(f"with suppress(Failed): call('cuMemUnmap', {wrong}); done = 1")
            program.do("check()", "'done' in globals() and 1 / 0")
        program.do("with suppress(Failed): asked('cuMemRetainAllocationHandle', small.address); 1 / 0")
        # AND everything can be freed on the card
        program.do("small.free()", "large.free()", "call('cuMemUnmap', at, 2 * PAGE)", "call('cuMemRelease', handle)")
        program.do("[call('cuMemUnmap', at + n * PAGE, PAGE) for n in (4, 6)]", "call('cuMemRelease', twin)")
        program.do("call('cuMemAddressFree', at, 8 * PAGE)")
        assert program.do("free_bytes()") == free + 8 * PAGE
        program.end()


def test_a_mapping_of_a_part(memlab):
    # GIVEN memory with only its first page mapped a second time
    with Console(memlab) as program:
        program.do("handle, at = create(2 * PAGE), reserve(4 * PAGE)", "own = holds(attach(at, 2 * PAGE, handle), 2 * PAGE)")
        program.do("attach(at + 2 * PAGE, PAGE, handle)", "a = allocate(PAGE)")
        # THEN it stays on the device, and the rest is moved
        assert program.move["fixed_bytes"] == 2 * PAGE
        program.succeed("offload")
        assert program.move["device_bytes"] == 0
        program.succeed("restore")
        program.do("check()", "first = Memory(at + 2 * PAGE, PAGE)", "first.bytes[:] = own.bytes[:PAGE]", "first.check()")
        program.end()


def test_memory_shared_with_another_process_stays(memlab):
    with Console(memlab) as program:
        program.do(
            "a, shared = allocate(PAGE), create(PAGE, shareable=True)",
            "s = holds(attach(reserve(PAGE), PAGE, shared), PAGE)",
        )
        assert program.move["fixed_bytes"] == 0
        # WHEN an export fails, THEN the memory can still be moved
        program.do("with suppress(Failed): asked('cuMemExportToShareableHandle', shared, 99, 0)")
        assert program.move["fixed_bytes"] == 0
        # WHEN another process imports it
        program.do(
            "file = asked('cuMemExportToShareableHandle', shared, 1, 0, kind=ctypes.c_int)",
            "os.set_inheritable(file, True)",
            "pass_on.append(file)",
            "other = Other(MEMLAB_OUTPUT='other.jsonl')",
            "other.do('use(0)')",
            "other.do(f\"theirs = asked('cuMemImportFromShareableHandle', ctypes.c_void_p({file}), 1)\")",
            "other.do('memory = Memory(attach(reserve(PAGE), PAGE, theirs), PAGE)')",
        )
        for number in range(3):
            assert (program.move["fixed_bytes"], program.move["device_bytes"]) == (PAGE, PAGE)
            program.succeed("offload")
            # THEN it stays on the device, also while the rest is offloaded, and each process sees the other's writes
            assert (program.move["fixed_bytes"], program.move["device_bytes"]) == (PAGE, 0)
            assert program.do(f"other.do('memory.fill({number + 65})')", "ctypes.string_at(s.address, 2).hex()")
            program.succeed("restore")
            program.do(f"s.bytes[:] = bytes([{number + 65}]) * PAGE", "check()")
        assert program.do("other.end()") == 0
        program.end()


def test_cuda_ipc_is_refused_with_a_message(memlab):
    for offload in (True, False):
        with Console(memlab, offload=offload) as program:
            program.do(
                "large, small = allocate(PAGE), allocate(MIB)",
                "share = lambda it: cu.cuIpcGetMemHandle(ctypes.create_string_buffer(64), ctypes.c_uint64(it.address))",
            )
            assert program.do("share(small)") == 0
            # THEN movable memory cannot be shared this way, which one line reports
            refused = [program.do("share(large)") != 0 for _ in range(3)]
            assert refused == [offload] * 3
            lines = program.errors.splitlines()
            assert len(lines) == offload
            assert all(line.startswith("memlab: memory that can be offloaded cannot be shared") for line in lines)
            program.end()


def test_two_devices(memlab):
    with Console(memlab, devices=2) as program:
        # GIVEN memory allocated before and after peer access is enabled
        program.do("use(1)", "c = allocate(3 * PAGE)", "use(0)", "a = allocate(3 * PAGE)")
        program.do(
            "call('cuCtxEnablePeerAccess', contexts[1], 0)", "use(1)", "call('cuCtxEnablePeerAccess', contexts[0], 0)"
        )
        program.do("d = allocate(PAGE)", "use(0)", "b = allocate(PAGE)")
        across = "call('cuMemcpyDtoD_v2', a.address, c.address, c.size)", "a.bytes[:] = c.bytes"
        free = program.do("free_bytes()"), program.do("use(1)", "free_bytes()")
        for number in range(4):
            program.cycle()
            program.do("check()", "c.write()", *across, "check()", "d.write()", f"use({number % 2})")
            ranges = [[program.do(f"{name}.address + PAGE * ({name}.size > PAGE)"), PAGE] for name in "acd"]
            program.succeed("offload", ranges=ranges)
            assert program.move["host_bytes"] == 3 * PAGE
            # THEN an address belongs to its device, wherever its bytes are
            for name, device in zip("abcd", (0, 0, 1, 1), strict=True):
                assert program.do(f"attributes({name}.address + {name}.size - 1, 2, 9)") == [2, device]
            program.do("check()", *across, "check()")
            program.succeed("restore")
        program.do("check()")
        assert (program.do("use(0)", "free_bytes()"), program.do("use(1)", "free_bytes()")) == free
        program.end()


def test_a_context_that_the_program_created(memlab):
    # GIVEN a program that never uses the device's primary context
    with Console(memlab) as program:
        program.do(
            "own = asked('cuCtxCreate_v2', 0, 0)", "call('cuDevicePrimaryCtxRelease_v2', 0)", "a = allocate(3 * PAGE)"
        )
        program.cycle()
        program.do("check()")
        program.succeed("offload", ranges=[[program.do("a.address"), PAGE]])
        program.do("check()")
        program.succeed("restore")
        program.do("check()")
        # WHEN the context is destroyed, THEN its memory is freed, and nothing remains to be moved
        program.do("call('cuCtxDestroy_v2', own)", "everything.clear()")
        assert (program.move["device_bytes"], program.move["host_bytes"]) == (0, 0)
        program.end()


def test_forks_and_subprocesses(memlab):
    with Console(memlab) as program:
        program.do("a = allocate(4 * PAGE)")
        program.succeed("offload")
        # WHEN a program forks while it is offloaded, THEN the child runs, has no CUDA as always, and can end
        program.do(
            "child = os.fork() or os._exit(cu.cuMemFree_v2(ctypes.c_uint64(a.address)) == 3 and "
            "cu.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), 1) == 3 and cu.cuMemcpyDtoH_v2(None, 0, 0) == 3)"
        )
        assert program.do("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 1
        assert program.do("subprocess.run(['echo', 'hello'], capture_output=True, text=True).stdout") == "hello\n"
        # AND the parent's memory is unaffected
        program.succeed("restore")
        program.do("check()")
        program.cycle()
        program.do("check()")
        program.end()
