// Memory: whose it is, and when it may go.
#include <cstdlib>

#include "fixture.hpp"

namespace pollcore::testing {
namespace {

class MemoryRegions : public Conformance {};

TEST_F(MemoryRegions, OfTheProgramsOwnWorkLikeAllocatedOnes) {
    connect_pair();
    std::vector<std::byte> mine(10000, std::byte{0x5a});
    MemoryRegion region = runtime.register_memory(mine.data(), mine.size());
    EXPECT_EQ(region.data(), mine.data());
    WorkRequest request = rdma(Opcode::rdma_write, 1, 0);
    request.sge = {region.addr(), 10000, region.lkey()};
    submit(request);
    EXPECT_EQ(await_one().status, Status::success);
    EXPECT_EQ(std::memcmp(remote.data(), mine.data(), mine.size()), 0);
    region.deregister();
    EXPECT_FALSE(region.valid());
}

TEST_F(MemoryRegions, AreNotDeregisteredWhileWorkThatNamesThemIsInFlight) {
    connect_pair();
    MemoryRegion region = runtime.allocate(4096);
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
        MemoryRegion region = runtime.allocate(100'000);
        EXPECT_EQ(region.addr() % kCacheLine, 0u);
        for (const std::byte byte : region.bytes()) {
            ASSERT_EQ(byte, std::byte{0});
        }
        std::memset(region.data(), 0xff, region.size());
    }
}

TEST_F(MemoryRegions, OutliveTheRuntimeThatMadeThem) {
    MemoryRegion region = runtime.allocate(4096);
    runtime.stop();
    std::memset(region.data(), 1, region.size());
    EXPECT_NO_THROW(region.deregister());
}

TEST_F(MemoryRegions, MoreThanThereIsIsRefusedWithWhatToRaise) {
    try {
        (void)runtime.allocate(std::size_t{1} << 40);
        FAIL() << "a terabyte was allocated";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("memory.size"), std::string::npos) << error.what();
    }
}

TEST_F(MemoryRegions, WithRemoteWriteNeedLocalWrite) {
    EXPECT_THROW((void)runtime.allocate(4096, Access{.local_write = false, .remote_write = true}), Error);
}

}  // namespace
}  // namespace pollcore::testing
