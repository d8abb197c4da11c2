// Memory of an attached program that did not come from the daemon's Context::allocate (AttachOptions::own_memory). The
// device is that of the conformance tests (tests/conformance/fixture.hpp).
//
// The daemon's threads are in this process, too, and write to its heap. So each test uses whole pages of its own.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "attach/mappings.hpp"
#include "attach/own_server.hpp"
#include "attach/pause.hpp"
#include "attach/raw_process.hpp"
#include "attach/shared_memory.hpp"
#include "base/unique_fd.hpp"
#include "conformance/fixture.hpp"
#include "give_way.hpp"
#include "own_pages.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;
using test::kPage;
using test::OwnPages;

struct alignas(kPage) StaticPages {
    std::byte bytes[3 * kPage];
};
StaticPages g_initialized{{std::byte{1}}};
StaticPages g_zeroed;

void fill(std::byte* data, std::size_t size, unsigned seed) {
    for (std::size_t i = 0; i < size; ++i) {
        data[i] = static_cast<std::byte>(i * 31 + (i >> 8) + seed);
    }
}
[[nodiscard]] bool is_filled(const std::byte* data, std::size_t size, unsigned seed) {
    std::vector<std::byte> expected(size);
    fill(expected.data(), size, seed);
    return std::memcmp(data, expected.data(), size) == 0;
}

enum class Kept { privately, shared, partly_shared };
Kept how_kept(const std::byte* data, std::size_t size) {
    const auto mappings = mappings_within({const_cast<std::byte*>(data), size});
    const auto shared = std::count_if(mappings.begin(), mappings.end(), [](const Mapping& one) { return one.shared; });
    return shared == 0                                              ? Kept::privately
           : shared == static_cast<std::ptrdiff_t>(mappings.size()) ? Kept::shared
                                                                    : Kept::partly_shared;
}

struct Refused {
    int error = 0;
    std::string why;
};
Refused refusal_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return {error.code().value(), error.what()};
    }
    return {};
}

class MovedMemoryTest : public ::testing::Test {
protected:
    static AttachConfig attach_config() { return test::socket_named("own-memory"); }
    static Attachment attach() {
        AttachOptions options = test::patient({.path = attach_config().path});
        options.own_memory = true;
        return Attachment(options);
    }
    MovedMemoryTest() {
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }

    MemoryRegion register_own(void* data, std::size_t bytes) {
        return daemon.register_memory(data, bytes, Access::all());
    }

    /// A write and a read by the device begin and end in `region`.
    void expect_reached(const MemoryRegion& region) {
        ASSERT_LE(region.size(), far.size());
        const auto length = static_cast<std::uint32_t>(region.size());
        const Sge own{region.addr(), length, region.lkey()};
        const Sge its{far.addr(), length, far.lkey()};
        std::byte* const memory = region.data();

        fill(memory, length, 1);
        carry_out(Opcode::rdma_write, own, far.addr(), far.rkey());
        EXPECT_TRUE(is_filled(far.data(), length, 1)) << "written from it";
        fill(far.data(), length, 2);
        carry_out(Opcode::rdma_read, own, far.addr(), far.rkey());
        EXPECT_TRUE(is_filled(memory, length, 2)) << "read into it";
        fill(far.data(), length, 3);
        carry_out(Opcode::rdma_write, its, region.addr(), region.rkey());
        EXPECT_TRUE(is_filled(memory, length, 3)) << "written into it";
        fill(memory, length, 4);
        carry_out(Opcode::rdma_read, its, region.addr(), region.rkey());
        EXPECT_TRUE(is_filled(far.data(), length, 4)) << "read from it";
    }
    void carry_out(Opcode opcode, const Sge& sge, std::uint64_t remote_addr, std::uint32_t rkey) {
        ASSERT_EQ(session.try_submit({.sge = sge,
                                      .remote_addr = remote_addr,
                                      .rkey = rkey,
                                      .qp = a.handle(),
                                      .opcode = opcode,
                                      .flags = kSignaled,
                                      .num_sge = 1}),
                  Refusal::none);
        Completion completion;
        const auto until = std::chrono::steady_clock::now() + 60s;
        while (session.poll({&completion, 1}) == 0) {
            ASSERT_LT(std::chrono::steady_clock::now(), until);
            test::give_way();
        }
        ASSERT_EQ(completion.status, Status::success);
    }

    /// The memory, its content and its neighbours on the same pages stay as they are when the region begins and ends.
    void expect_works(std::byte* pages, std::size_t size, std::size_t from, std::size_t length) {
        fill(pages, size, 9);
        MemoryRegion region = register_own(pages + from, length);
        EXPECT_EQ(region.data(), pages + from);
        EXPECT_TRUE(is_filled(pages, size, 9));
        EXPECT_NE(how_kept(pages, size), Kept::privately);
        expect_reached(region);
        region.deregister();
        EXPECT_EQ(how_kept(pages, size), Kept::privately);
        EXPECT_TRUE(is_filled(pages + from, length, 4));
        fill(pages + from, length, 0);
        std::vector<std::byte> neighbours(size);
        fill(neighbours.data(), size, 9);
        fill(neighbours.data() + from, length, 0);
        EXPECT_EQ(std::memcmp(pages, neighbours.data(), size), 0);
    }
    /// Registering is refused, and nothing has moved.
    void expect_refused(void* data, std::size_t bytes, int error, const std::string& why) {
        const Refused refused = refusal_of([&] { (void)register_own(data, bytes); });
        EXPECT_EQ(refused.error, error) << refused.why;
        EXPECT_NE(refused.why.find(why), std::string::npos) << refused.why;
    }

    Runtime runtime{testing::test_config()};
    std::optional<AttachServer> server{std::in_place, runtime, attach_config()};
    Attachment daemon = attach();
    Session session = daemon.open_session();
    MemoryRegion far = daemon.allocate(1 << 20, Access::all());
    QueuePair a = daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
    QueuePair b = daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()});
};

TEST_F(MovedMemoryTest, OfTheHeapIsReachedAtAnyAddress) {
    constexpr std::size_t kSize = 100 * kPage;
    const std::unique_ptr<std::byte, decltype(&std::free)> heap(
        static_cast<std::byte*>(std::aligned_alloc(kPage, kSize)), &std::free);
    expect_works(heap.get(), kSize, 1235, 98 * kPage + 7);
    expect_works(heap.get(), kSize, 2 * kPage - 1, 2);
    expect_works(heap.get(), kSize, 0, kSize);
}

TEST_F(MovedMemoryTest, OfMmapIsReached) {
    const OwnPages pages(5);
    expect_works(pages.data(), pages.size(), 0, pages.size());
    expect_works(pages.data(), pages.size(), kPage, 1);
}

TEST_F(MovedMemoryTest, OfStaticVariablesIsReached) {
    expect_works(g_initialized.bytes, sizeof(g_initialized), 100, kPage);
    expect_works(g_zeroed.bytes, sizeof(g_zeroed), 100, kPage);
}

TEST_F(MovedMemoryTest, HasTheAddressThatTheProgramChooses) {
    const OwnPages pages(2);
    constexpr std::uint64_t kElsewhere = 0x7000'0000'0000;
    const MemoryRegion region = daemon.register_memory_at(kElsewhere + 24, pages.data() + 24, kPage, Access::all());
    EXPECT_EQ(region.addr(), kElsewhere + 24);
    expect_reached(region);
}

TEST_F(MovedMemoryTest, MayHaveSeveralRegions) {
    const OwnPages pages(4);
    MemoryRegion whole = register_own(pages.data() + 10, 4 * kPage - 20);
    MemoryRegion part = register_own(pages.data() + kPage + 5, 2 * kPage);
    MemoryRegion beside = register_own(pages.data(), 10);  // on a page of the first region
    expect_reached(whole);
    expect_reached(part);
    expect_reached(beside);
    whole.deregister();
    EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::shared);
    expect_reached(part);
    MemoryRegion again = register_own(pages.data(), pages.size());
    part.deregister();
    beside.deregister();
    expect_reached(again);
    again.deregister();
    EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::privately);
    EXPECT_TRUE(is_filled(pages.data(), pages.size(), 4));
}

TEST_F(MovedMemoryTest, ThatWasUnmappedAndMappedAnewIsOtherMemory) {
    OwnPages pages(4);
    std::optional<MemoryRegion> before = register_own(pages.data(), pages.size());
    pages.map_anew();
    fill(pages.data(), pages.size(), 7);
    std::optional<MemoryRegion> after = register_own(pages.data(), pages.size());
    expect_reached(*after);
    before.reset();
    EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::shared);
    expect_reached(*after);
    // Only a part was mapped anew: the other pages become private again when the region ends.
    fill(pages.data(), pages.size(), 7);
    pages.map_anew(2);
    EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::partly_shared);
    expect_refused(pages.data(), pages.size(), EOPNOTSUPP, "partly in memory that is registered already");
    MemoryRegion rest = register_own(pages.data() + 2 * kPage, kPage);
    after.reset();
    EXPECT_EQ(how_kept(pages.data(), 2 * kPage), Kept::privately);
    EXPECT_TRUE(is_filled(pages.data(), 2 * kPage, 7));
    expect_reached(rest);
}

TEST_F(MovedMemoryTest, ThatOverlapsARegionPartlyIsRefused) {
    const OwnPages pages(6);
    fill(pages.data(), pages.size(), 5);
    MemoryRegion middle = register_own(pages.data() + 2 * kPage + 1, kPage);
    const char* const why = "partly in memory that is registered already";
    expect_refused(pages.data(), pages.size(), EOPNOTSUPP, why);
    expect_refused(pages.data(), 2 * kPage + 1, EOPNOTSUPP, why);
    expect_refused(pages.data() + 4 * kPage - 1, 2, EOPNOTSUPP, why);
    EXPECT_TRUE(is_filled(pages.data(), pages.size(), 5));
    EXPECT_EQ(how_kept(pages.data(), 2 * kPage), Kept::privately);
    // Two regions in memory of two moves.
    const MemoryRegion next = register_own(pages.data() + 4 * kPage, kPage);
    expect_refused(pages.data() + 3 * kPage, 2 * kPage, EOPNOTSUPP, why);
    expect_reached(next);
    expect_reached(middle);
}

TEST_F(MovedMemoryTest, ThatCannotBeMovedIsRefused) {
    const auto expect_unmovable = [&](int rights, int flags, int fd, const std::string& why) {
        void* const data = ::mmap(nullptr, 4u << 20, rights, flags, fd, 0);
        ASSERT_NE(data, MAP_FAILED) << why << ": " << std::strerror(errno);
        expect_refused(data, kPage, EOPNOTSUPP, why);
        ::munmap(data, 4u << 20);
    };
    constexpr int kRights = PROT_READ | PROT_WRITE;
    constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    const UniqueFd file(::memfd_create("a file", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(file.get(), 4 << 20), 0);
    expect_unmovable(kRights, MAP_SHARED | MAP_ANONYMOUS, -1, "a shared mapping");
    expect_unmovable(kRights, MAP_SHARED, file.get(), "a shared mapping");
    expect_unmovable(kRights, MAP_PRIVATE, file.get(), "a mapping of the file");
    // Nobody touches these pages, so it does not matter whether there are huge pages.
    expect_unmovable(kRights, kAnonymous | MAP_HUGETLB | MAP_NORESERVE, -1, "huge pages");
    expect_unmovable(PROT_NONE, kAnonymous, -1, "cannot be read and written");
    expect_unmovable(PROT_READ, kAnonymous, -1, "cannot be read and written");
    expect_unmovable(kRights | PROT_EXEC, kAnonymous, -1, "cannot be read and written");

    const OwnPages pages(5);
    fill(pages.data(), pages.size(), 6);
    ASSERT_EQ(::mprotect(pages.data() + 2 * kPage, kPage, PROT_NONE), 0);
    expect_refused(pages.data(), pages.size(), EOPNOTSUPP, "cannot be read and written");
    ASSERT_EQ(::munmap(pages.data() + 2 * kPage, kPage), 0);
    expect_refused(pages.data(), pages.size(), EINVAL, "not mapped");
    expect_refused(pages.data() + 2 * kPage, 1, EINVAL, "not mapped");
    expect_refused(pages.data() + kPage, kPage + 1, EINVAL, "not mapped");
    EXPECT_TRUE(is_filled(pages.data(), 2 * kPage, 6));
    EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::privately);
    expect_refused(nullptr, kPage, EINVAL, "not mapped");
    expect_refused(pages.data(), SIZE_MAX - 10, EINVAL, "address space");
    expect_refused(reinterpret_cast<void*>(UINTPTR_MAX - 10), 5, EINVAL, "address space");
}

TEST_F(MovedMemoryTest, OfTheCallingThreadsStackIsRefused) {
    // Not a local variable: the address sanitizer may keep it elsewhere.
    void* const of_main_thread = __builtin_frame_address(0);
    static thread_local std::byte variable[64]{};
    const char* const why = "stack, or its thread-local variables";
    expect_refused(of_main_thread, 64, EOPNOTSUPP, why);
    expect_refused(variable, sizeof(variable), EOPNOTSUPP, why);
    expect_refused(reinterpret_cast<void*>(::pthread_self()), 64, EOPNOTSUPP, why);
    std::thread([&] {
        expect_refused(__builtin_frame_address(0), 64, EOPNOTSUPP, why);
        expect_refused(of_main_thread, 64, EOPNOTSUPP, "a stack");
    }).join();
}

TEST_F(MovedMemoryTest, NeedsTheOption) {
    Attachment without(test::patient({.path = attach_config().path}));
    const OwnPages pages(1);
    const Refused refused =
        refusal_of([&] { (void)without.register_memory(pages.data(), pages.size(), Access::all()); });
    EXPECT_EQ(refused.error, EOPNOTSUPP);
    EXPECT_NE(refused.why.find("AttachOptions::own_memory"), std::string::npos) << refused.why;
    EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::privately);
}

TEST_F(MovedMemoryTest, OfAnotherAttachmentIsRefused) {
    Attachment other = attach();
    const OwnPages pages(2);
    std::optional<MemoryRegion> its = other.register_memory(pages.data(), pages.size(), Access::all());
    expect_refused(pages.data(), kPage, EOPNOTSUPP, "deregister it there first");
    its.reset();
    expect_works(pages.data(), pages.size(), 0, pages.size());
}

// A child shares the pages as long as a region is there, and has its own afterwards.
TEST_F(MovedMemoryTest, IsSharedWithAForkedChildUntilTheLastRegionEnds) {
    const OwnPages pages(1);
    const auto write_in_child = [&](std::byte value) {
        const pid_t child = ::fork();
        if (child == 0) {
            pages.data()[0] = value;
            ::_exit(0);
        }
        int status = 0;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    };
    MemoryRegion region = register_own(pages.data(), pages.size());
    write_in_child(std::byte{1});
    EXPECT_EQ(pages.data()[0], std::byte{1});
    region.deregister();
    write_in_child(std::byte{2});
    EXPECT_EQ(pages.data()[0], std::byte{1});
}

TEST_F(MovedMemoryTest, StaysWhereItIsWhenTheDaemonRefusesIt) {
    constexpr std::size_t kPages = 16;
    const OwnPages pages(kPages);
    fill(pages.data(), pages.size(), 3);
    AttachConfig config = attach_config();
    config.registered_max = pages.size();
    server->configure(config);
    Attachment small = attach();
    std::optional<MemoryRegion> other = small.allocate(kPage, Access::all());
    const auto expect_quota = [&](const char* who) {
        SCOPED_TRACE(who);
        EXPECT_EQ(
            refusal_of([&] { (void)small.register_memory(pages.data() + 1, pages.size() - 1, Access::all()); }).error,
            EDQUOT);
        EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::privately);
        EXPECT_TRUE(is_filled(pages.data(), pages.size(), 3));
    };
    expect_quota("the daemon refuses");
    other.reset();
    (void)small.register_memory(pages.data() + 1, pages.size() - 1, Access::all());
    config.registered_max = pages.size() - 1;
    server->configure(config);
    small = attach();
    expect_quota("the process knows what it may have");
}

TEST_F(MovedMemoryTest, KeepsItsContentWhenTheDaemonIsGone) {
    const OwnPages pages(4);
    fill(pages.data(), pages.size(), 3);
    MemoryRegion region = register_own(pages.data() + kPage + 1, kPage);
    server->stop(0ms);
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (!daemon.lost()) {
        ASSERT_LT(std::chrono::steady_clock::now(), until);
        test::give_way();
    }
    EXPECT_EQ(refusal_of([&] { (void)register_own(pages.data(), 1); }).error, ECONNRESET);
    EXPECT_EQ(how_kept(pages.data(), kPage), Kept::privately);
    EXPECT_TRUE(is_filled(pages.data(), pages.size(), 3));
    region.deregister();
    EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::privately);
    EXPECT_TRUE(is_filled(pages.data(), pages.size(), 3));
}

/// Calls `body` in a thread in which this system call fails.
void without(long call, int error, const std::function<void()>& body) {
    std::thread([&] {
        sock_filter program[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const sock_fprog filter{std::size(program), program};
        ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
        body();
    }).join();
}

TEST_F(MovedMemoryTest, StaysWhereItIsWhenAStepFails) {
    OwnPages pages(4);
    const struct {
        long call;
        int error;
    } steps[] = {{SYS_memfd_create, EMFILE}, {SYS_process_vm_readv, EPERM}, {SYS_mremap, ENOMEM}};
    for (const auto& step : steps) {
        SCOPED_TRACE(step.call);
        fill(pages.data(), pages.size(), 3);
        without(step.call, step.error, [&] { expect_refused(pages.data() + 1, 2 * kPage, step.error, ""); });
        EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::privately);
        EXPECT_TRUE(is_filled(pages.data(), pages.size(), 3));
        EXPECT_EQ(daemon.control_counters().memory_regions.value(), 1u) << "the daemon keeps what nobody uses";
        expect_works(pages.data(), pages.size(), 1, 2 * kPage);
        // The pages stay shared if they cannot become private again. A region cannot be refused its end.
        std::optional<MemoryRegion> region = register_own(pages.data(), pages.size());
        fill(pages.data(), pages.size(), 3);
        if (step.call != SYS_memfd_create) {
            without(step.call, step.error, [&] { region->deregister(); });
            EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::shared);
        }
        region.reset();
        EXPECT_TRUE(is_filled(pages.data(), pages.size(), 3));
        pages.map_anew();
    }
}

// A kernel without memory may unmap the pages, and fail then. Here another thread takes the kernel's place.
TEST_F(MovedMemoryTest, IsThereAgainWhenTheKernelHasUnmappedIt) {
    const OwnPages pages(4);
    fill(pages.data(), pages.size(), 3);
    std::promise<int> listener;
    std::thread mover([&] {
        sock_filter program[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const sock_fprog filter{std::size(program), program};
        EXPECT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        listener.set_value(static_cast<int>(
            ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter)));
        expect_refused(pages.data(), pages.size(), ENOMEM, "");
    });
    const UniqueFd calls(listener.get_future().get());
    seccomp_notif call{};
    ASSERT_EQ(::ioctl(calls.get(), SECCOMP_IOCTL_NOTIF_RECV, &call), 0) << std::strerror(errno);
    EXPECT_EQ(::munmap(reinterpret_cast<void*>(call.data.args[4]), call.data.args[2]), 0);
    EXPECT_TRUE(mappings_within({pages.data(), pages.size()}).empty());
    seccomp_notif_resp answer{.id = call.id, .val = 0, .error = -ENOMEM, .flags = 0};
    EXPECT_EQ(::ioctl(calls.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer), 0) << std::strerror(errno);
    mover.join();
    EXPECT_EQ(how_kept(pages.data(), pages.size()), Kept::privately);
    EXPECT_TRUE(is_filled(pages.data(), pages.size(), 3));
}

// The first region of the pages names the memfd for the others, and may end at any time.
TEST_F(MovedMemoryTest, MayBeRegisteredByManyThreads) {
    constexpr int kThreads = 4;
    constexpr int kTimes = 20;
    const OwnPages common(1);
    fill(common.data(), common.size(), 3);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            const OwnPages own(2);
            fill(own.data(), own.size(), 3);
            for (int n = 0; n < kTimes; ++n) {
                MemoryRegion shared = register_own(common.data() + 100 * i, 100);
                MemoryRegion mine = register_own(own.data() + n, kPage);
                EXPECT_TRUE(is_filled(own.data(), own.size(), 3));
                shared.deregister();
                mine.deregister();
            }
            EXPECT_TRUE(is_filled(own.data(), own.size(), 3));
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_TRUE(is_filled(common.data(), common.size(), 3));
    EXPECT_EQ(how_kept(common.data(), common.size()), Kept::privately);
}

// The process chooses parent, offset and length in a message.
TEST_F(MovedMemoryTest, InAHostileMessageIsRefused) {
    test::RawProcess process(attach_config().path);
    const SharedMemory memory = make_shared_memory(4 * kPage, "hostile");
    const auto ask = [&](std::uint64_t parent, std::uint64_t offset, std::uint64_t bytes, bool with_memfd) {
        const int fd = memory.fd.get();
        return process.send(wire::RegisterMemory{.parent = parent,
                                                 .offset = offset,
                                                 .bytes = bytes,
                                                 .iova = offset % kPage,
                                                 .device = NameText("net0"),
                                                 .access = Access::all()},
                            with_memfd ? std::span(&fd, 1) : std::span<const int>{});
    };
    const auto refusal = [&](std::uint64_t id) { return process.refusal<wire::RegisterMemory>(id); };
    EXPECT_EQ(refusal(ask(0, 4 * kPage, 1, true)), EINVAL);
    EXPECT_EQ(refusal(ask(0, 1, 4 * kPage, true)), EINVAL);
    EXPECT_EQ(refusal(ask(0, UINT64_MAX, 2, true)), EDQUOT);
    EXPECT_EQ(refusal(ask(0, 2, UINT64_MAX, true)), EDQUOT);
    EXPECT_EQ(refusal(ask(0, UINT64_MAX - kPage + 1, kPage, true)), EDQUOT);
    EXPECT_EQ(refusal(ask(0, kPage, 0, true)), EPROTO);

    const auto region = process.answer<wire::RegisterMemory>(ask(0, kPage + 8, 3 * kPage - 8, true));
    EXPECT_EQ(refusal(ask(region.id, 4 * kPage, 1, false)), EINVAL);
    EXPECT_EQ(refusal(ask(region.id, 8, 4 * kPage - 7, false)), EINVAL);
    EXPECT_EQ(refusal(ask(region.id, UINT64_MAX, 2, false)), EINVAL);
    EXPECT_EQ(refusal(ask(region.id, 8, UINT64_MAX, false)), EINVAL);
    EXPECT_EQ(refusal(ask(region.id, 8, 0, false)), EINVAL);
    EXPECT_EQ(refusal(ask(region.id + 1, 0, 8, false)), EINVAL);
    EXPECT_EQ(refusal(ask(region.id, 0, 4 * kPage, false)), 0);
}

TEST(APause, HoldsAnotherThreadUntilItIsLetGo) {
    const UniqueFd wake = make_event_fd("a test");
    Pause pause(wake.get());
    std::atomic<std::uint64_t> turns{0};
    std::atomic<bool> over{false};
    std::thread other([&] {
        while (!over.load()) {
            turns.fetch_add(1);
            pause.take_if_asked();
            test::give_way();
        }
        pause.end();
    });
    for (int i = 0; i < 100; ++i) {
        pause.hold(60s);
        const std::uint64_t before = turns.load();
        test::give_way();
        EXPECT_EQ(turns.load(), before);
        pause.let_go();
        while (turns.load() == before) {
            test::give_way();
        }
    }
    EXPECT_TRUE(drain_event(wake.get()));
    over.store(true);
    other.join();
    pause.hold(60s);  // nobody is left
    pause.let_go();
}

TEST(APause, IsGivenUpIfTheOtherThreadDoesNotTakeIt) {
    const UniqueFd wake = make_event_fd("a test");
    Pause pause(wake.get());
    EXPECT_EQ(refusal_of([&] { pause.hold(1ms); }).error, ETIMEDOUT);
    pause.take_if_asked();  // returns: nobody asks any more
    std::thread other([&] {
        while (!drain_event(wake.get())) {
            test::give_way();
        }
        pause.end();  // without a pause, though it was asked
    });
    (void)drain_event(wake.get());
    pause.hold(60s);
    pause.let_go();
    other.join();
}

}  // namespace
}  // namespace pollcore
