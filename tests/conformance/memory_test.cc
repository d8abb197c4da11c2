// Memory regions: who owns the memory, which access a region gives, and when it may be deregistered.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "base/unique_fd.hpp"
#include "fixture.hpp"

namespace pollcore::testing {
namespace {

class MemoryRegions : public Conformance {};

TEST_F(MemoryRegions, OfTheProgramsOwnWorkLikeAllocatedOnes) {
    connect_pair();
    std::vector<std::byte> mine(10000, std::byte{0x5a});
    MemoryRegion region = runtime.register_memory(mine.data(), mine.size(), Access::all());
    EXPECT_EQ(region.data(), mine.data());
    WorkRequest request = rdma(Opcode::rdma_write, 1, 0);
    request.sge = {region.addr(), 10000, region.lkey()};
    request.remote_addr += 20000;
    submit(request);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(std::memcmp(remote.data() + 20000, mine.data(), mine.size()), 0);
    region.deregister();
    EXPECT_FALSE(region.valid());
}

// The model of an mlx5 HCA takes any file that can be mapped for a dma-buf. rxe and the software device take none.
TEST_F(MemoryRegions, OfADmabuf) {
    connect_pair();
    constexpr std::size_t kPage = 4096;
    const UniqueFd file(::memfd_create("stands for a dma-buf", MFD_CLOEXEC));
    ASSERT_TRUE(file.valid());
    ASSERT_EQ(::ftruncate(file.get(), 4 * kPage), 0);
    std::vector<std::byte> written(kPage, std::byte{0x5a});
    ASSERT_EQ(::pwrite(file.get(), written.data(), kPage, kPage), static_cast<ssize_t>(kPage));
    const DmabufRange range{.fd = file.get(), .offset = kPage, .bytes = 2 * kPage};
    if (!test::Mlx5Model::is_there() || attached_tests()) {
        try {
            (void)runtime.register_dmabuf(range, 16 * kPage, Access::all());
            FAIL() << "was registered";
        } catch (const Error& error) {
            // A NIC's driver takes dma-bufs, but this file is none. Linux 6.1 answers with EINVAL for rxe.
            EXPECT_TRUE(error.code() == std::errc::operation_not_supported ||
                        error.code() == std::errc::invalid_argument ||
                        TestDevice::get().provider == TestDevice::Provider::mlx5)
                << error.what();
        }
        return;
    }
    MemoryRegion region = runtime.register_dmabuf(range, 16 * kPage, Access::all());
    EXPECT_EQ(region.data(), nullptr);
    EXPECT_EQ(region.addr(), 16 * kPage);
    EXPECT_EQ(region.size(), 2 * kPage);
    WorkRequest request = rdma(Opcode::rdma_write, 1, 0);
    request.sge = region.sge(0, kPage);
    submit(request);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(std::memcmp(remote.data(), written.data(), kPage), 0);
    std::memset(remote.data(), 0x66, kPage);
    request = rdma(Opcode::rdma_read, 2, 0);
    request.sge = region.sge(kPage, kPage);
    submit(request);
    EXPECT_EQ(await_one().status, Status::success);
    std::vector<std::byte> read(kPage);
    ASSERT_EQ(::pread(file.get(), read.data(), kPage, 2 * kPage), static_cast<ssize_t>(kPage));
    EXPECT_EQ(std::memcmp(remote.data(), read.data(), kPage), 0);
    region.deregister();
    EXPECT_THROW((void)runtime.register_dmabuf(range, 16 * kPage + 1, Access::all()),
                 Error);  // not the place in a page
    EXPECT_THROW((void)runtime.register_dmabuf({.fd = -1, .offset = kPage, .bytes = kPage}, kPage, {}), Error);
}

TEST_F(MemoryRegions, AreNotDeregisteredWhileWorkThatNamesThemIsInFlight) {
    connect_pair();
    MemoryRegion region = runtime.allocate(4096, Access::all());
    WorkRequest request = recv(1, 0);
    request.sge = {region.addr(), 64, region.lkey()};
    submit(request);
    try {
        region.deregister();
        FAIL() << "was deregistered";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), std::errc::device_or_resource_busy) << error.what();
    }
    EXPECT_TRUE(region.valid());
    submit(send(2, 8));
    for (const Completion& completion : await(2)) {
        EXPECT_EQ(completion.status, Status::success);
    }
    EXPECT_NO_THROW(region.deregister());
}

TEST_F(MemoryRegions, AreCleanAndAlignedWhenAllocated) {
    for (int i = 0; i < 20; ++i) {
        MemoryRegion region = runtime.allocate(100'000, Access::all());
        EXPECT_EQ(region.addr() % kCacheLine, 0u);
        for (const std::byte byte : region.bytes()) {
            ASSERT_EQ(byte, std::byte{0});
        }
        std::memset(region.data(), 0xff, region.size());
    }
}

TEST_F(MemoryRegions, OutliveTheRuntimeThatMadeThem) {
    MemoryRegion region = runtime.allocate(4096, Access::all());
    runtime.stop();
    std::memset(region.data(), 1, region.size());
    EXPECT_NO_THROW(region.deregister());
}

TEST_F(MemoryRegions, MoreThanThereIsIsRefusedWithWhatToRaise) {
    try {
        (void)runtime.allocate(std::size_t{1} << 40, Access::all());
        FAIL() << "a terabyte was allocated";
    } catch (const Error& error) {
        const char* limit = attached_tests() ? "attach.registered_max" : "memory.size";
        EXPECT_NE(std::string(error.what()).find(limit), std::string::npos) << error.what();
    }
}

TEST_F(MemoryRegions, HaveAtLeastOneByte) {
    std::byte one{};
    for (const auto& make : {std::function([&] { (void)runtime.allocate(0, Access::all()); }),
                             std::function([&] { (void)runtime.register_memory(&one, 0, Access::all()); })}) {
        try {
            make();
            FAIL() << "a region of nothing";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), std::errc::invalid_argument);
            EXPECT_NE(std::string(error.what()).find("0 bytes"), std::string::npos) << error.what();
        }
    }
}

TEST_F(MemoryRegions, HaveTheAddressThatTheProgramChooses) {
    connect_pair();
    constexpr std::size_t kPage = 4096;
    constexpr std::uint64_t kElsewhere = 0x7000'0000'0000;
    std::byte* const pages = remote.data() + (kPage - remote.addr() % kPage) % kPage + kPage;
    for (const std::uint64_t iova : {kElsewhere, std::uint64_t{0}}) {
        MemoryRegion region = runtime.register_memory_at(iova, pages, 2 * kPage, Access::all());
        EXPECT_EQ(region.addr(), iova);
        EXPECT_EQ(region.data(), pages);
        fill(local, static_cast<unsigned>(iova >> 40) + 5);
        WorkRequest request = rdma(Opcode::rdma_write, 1, 100);
        request.remote_addr = iova + 2 * kPage - 100;
        request.rkey = region.rkey();
        submit(request);
        EXPECT_EQ(await_one().status, Status::success);
        EXPECT_EQ(std::memcmp(pages + 2 * kPage - 100, local.data(), 100), 0);
        // Local requests use the chosen address, too, together with the lkey.
        request = rdma(Opcode::rdma_write, 2, 0);
        request.sge = {iova + 2 * kPage - 100, 100, region.lkey()};
        submit(request);
        EXPECT_EQ(await_one().status, Status::success);
        EXPECT_EQ(std::memcmp(remote.data(), local.data(), 100), 0);
        region.deregister();
        Exercised::get().note("memory regions", iova == 0 ? "zero-based" : "an address of one's choice");
    }
    MemoryRegion region = runtime.register_memory_at(kElsewhere, pages, kPage, Access::all());
    WorkRequest beyond = rdma(Opcode::rdma_write, 3, 8);
    beyond.remote_addr = region.addr() + kPage - 7;
    beyond.rkey = region.rkey();
    submit(beyond);
    EXPECT_EQ(await_one().status, Status::rem_access_err);
}

TEST_F(MemoryRegions, MayHaveRelaxedOrdering) {
    connect_pair();
    Access access = Access::all();
    access.relaxed_ordering = true;  // a device without relaxed ordering ignores this
    MemoryRegion region = runtime.allocate(kBytes, access);
    WorkRequest request = rdma(Opcode::rdma_write, 1, kBytes);
    request.remote_addr = region.addr();
    request.rkey = region.rkey();
    submit(request);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(std::memcmp(region.data(), local.data(), kBytes), 0);
    Exercised::get().note("memory regions", "relaxed ordering");
}

TEST_F(MemoryRegions, AndQueuePairsForbidWhatTheyWereNotGivenTheRightTo) {
    const struct {
        const char* what;
        Opcode opcode;
        Access region;
        RemoteAccess qp;
    } cases[] = {
        {"write", Opcode::rdma_write, {.remote_read = true, .remote_atomic = true}, {.read = true, .atomic = true}},
        {"read", Opcode::rdma_read, {.remote_write = true, .remote_atomic = true}, {.write = true, .atomic = true}},
        {"compare-and-swap",
         Opcode::atomic_cmp_and_swp,
         {.remote_read = true, .remote_write = true},
         {.read = true, .write = true}},
        {"fetch-and-add",
         Opcode::atomic_fetch_and_add,
         {.remote_read = true, .remote_write = true},
         {.read = true, .write = true}},
        {"write to what is local", Opcode::rdma_write, {}, {.read = true, .atomic = true}},
    };
    for (const auto& test : cases) {
        SCOPED_TRACE(test.what);
        MemoryRegion closed = runtime.allocate(4096, test.region);
        connect_pair();
        WorkRequest request = rdma(test.opcode, 1, 8);
        request.remote_addr = closed.addr();
        request.rkey = closed.rkey();
        submit(request);
        EXPECT_EQ(await_one().status, Status::rem_access_err) << "the region's right";

        QueuePairOptions options = shape();
        options.remote_access = test.qp;
        connect_pair(options, PathAttributes{});
        submit(rdma(test.opcode, 2, 8));
        EXPECT_EQ(await_one().status, Status::rem_inv_req_err) << "the queue pair's right";
    }
}

// Access has no default: the caller must state it.
template <class C>
concept RegistersWithoutAccess = requires(C& context, void* data) {
    context.allocate(64);
}
|| requires(C& context, void* data) {
    context.register_memory(data, 64);
}
|| requires(C& context, void* data) {
    context.register_memory_at(0, data, 64);
};
static_assert(!RegistersWithoutAccess<Context>);

// Peers have no access to memory unless the application gives it, and flow control gives no more access than it needs.
TEST_F(MemoryRegions, AreOutOfReachUnlessTheQueuePairSaysSo) {
    const auto refuses = [&](FlowControl flow, Opcode opcode) {
        SCOPED_TRACE(flow_control_name(flow));
        QueuePairOptions options = shape(flow);
        a = runtime.create_queue_pair(options);
        b = runtime.create_queue_pair(options);
        const QpInfo info_a = a.info();
        a.connect(b.info(), {});
        b.connect(info_a, {});
        submit(rdma(opcode, 1, 8));
        EXPECT_EQ(await_one().status, Status::rem_inv_req_err) << static_cast<int>(opcode);
    };
    for (const Opcode opcode :
         {Opcode::rdma_write, Opcode::rdma_read, Opcode::atomic_cmp_and_swp, Opcode::atomic_fetch_and_add}) {
        refuses(FlowControl::off, opcode);
    }
    refuses(FlowControl::credits, Opcode::atomic_fetch_and_add);
    refuses(FlowControl::ring, Opcode::rdma_read);
}

TEST_F(MemoryRegions, WithoutLocalWriteTakeNoReceivesReadsOrAtomics) {
    MemoryRegion read_only = runtime.allocate(4096, Access{.local_write = false});
    const Sge into{read_only.addr(), 8, read_only.lkey()};
    for (const Opcode opcode : {Opcode::rdma_read, Opcode::atomic_fetch_and_add, Opcode::atomic_cmp_and_swp}) {
        connect_pair();
        WorkRequest request = rdma(opcode, 1, 8);
        request.sge = into;
        submit(request);
        EXPECT_EQ(await_one().status, Status::loc_prot_err) << static_cast<int>(opcode);
    }
    connect_pair();
    WorkRequest receive = recv(2, 8);
    receive.sge = into;
    submit(receive);
    submit(send(3, 8));
    const auto completions = await(2);
    const auto sent = of(completions, a.handle(), false);
    const auto received = of(completions, b.handle(), true);
    ASSERT_EQ(sent.size(), 1u);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(sent[0].status, Status::rem_op_err);
    EXPECT_EQ(received[0].status, expected(Status::loc_prot_err, Status::loc_qp_op_err));
}

TEST_F(MemoryRegions, WithRemoteWriteNeedLocalWrite) {
    EXPECT_THROW((void)runtime.allocate(4096, Access{.local_write = false, .remote_write = true}), Error);
}

}  // namespace
}  // namespace pollcore::testing
