// A GID table that takes an attached process several questions to read, and that changes meanwhile.
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "attach/own_server.hpp"
#include "device/soft/soft_device.hpp"
#include "on_host_platform.hpp"
#include "patient.hpp"
#include "pollcore/attach.hpp"
#include "pollcore/attach_server.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {
namespace {

constexpr std::uint32_t kFirst = 10;  // the entries before it are not in use
constexpr std::uint32_t kEnd = 260;
constexpr std::uint32_t kGone = 15;

// After the first question the table loses an entry, or all.
class ChangingTable final : public SoftDevice {
public:
    using SoftDevice::SoftDevice;

    std::vector<GidEntry> gids() override {
        std::vector<GidEntry> all;
        for (std::uint32_t index = kFirst; index < kEnd && !empty; ++index) {
            if (index != kGone || questions == 0) {
                all.push_back({.index = index, .gid = SoftDevice::gids().at(0).gid});
            }
        }
        ++questions;
        return all;
    }

    std::atomic<std::uint32_t> questions{0};
    std::atomic<bool> empty{false};
};

class PlatformWithTable final : public test::OnHostPlatform {
public:
    explicit PlatformWithTable(ChangingTable*& device) : device_(device) {}
    std::unique_ptr<Device> open_device(const DeviceConfig& config) override {
        auto table = std::make_unique<ChangingTable>(SoftDeviceOptions{.name = config.name});
        device_ = table.get();
        return table;
    }

private:
    ChangingTable*& device_;
};

class GidTable : public ::testing::Test {
protected:
    ChangingTable* device = nullptr;
    Runtime runtime{test::one_soft_device(64), std::make_unique<PlatformWithTable>(device)};
    AttachServer server{runtime, test::socket_named("gids")};
    Attachment attachment{test::patient({.path = test::socket_named("gids").path})};
};

TEST_F(GidTable, HasNoEntryTwiceAndNoneLeftOutWhenItChangesMeanwhile) {
    device->questions = 0;
    const std::vector<GidAttributes> gids = attachment.gids();
    EXPECT_GT(device->questions, 2u);
    ASSERT_EQ(gids.size(), kEnd - kFirst);
    for (std::uint32_t index = kFirst; index < kEnd; ++index) {
        EXPECT_EQ(gids[index - kFirst].gid_index, index);
    }
}

TEST_F(GidTable, IsNotNeededForAReset) {
    Session session = attachment.open_session();
    QueuePair qp = attachment.create_queue_pair({.shares = {{.session = &session}}});
    device->empty = true;
    EXPECT_THROW((void)qp.info(), Error);
    EXPECT_TRUE(qp.reset());
}

}  // namespace
}  // namespace pollcore
