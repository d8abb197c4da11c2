// Tests the verbs device on the kernel's Soft-RoCE. Runs in scripts/rxe-vm.
#include "device/verbs/verbs_device.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "pollcore/limits.hpp"
#include "rxe_device.hpp"

namespace pollcore {
namespace {

using rxe::error_of;
using rxe::says;
using rxe::variable;

class VerbsDeviceTest : public testing::Test {
protected:
    std::unique_ptr<VerbsDevice> device_ = rxe::open_device();
};

TEST(VerbsDeviceOpen, AnUnknownNameIsRefusedWithTheNamesThatThereAre) {
    const Error error = error_of([] { (void)VerbsDevice::open("mlx5_77", 1); });
    EXPECT_EQ(error.code(), std::errc::no_such_device);
    EXPECT_TRUE(says(error, "mlx5_77")) << error.what();
    EXPECT_TRUE(says(error, variable("POLLCORE_RXE_DEVICE"))) << error.what();
    EXPECT_TRUE(says(error, variable("POLLCORE_RXE_PEER"))) << error.what();
}

TEST(VerbsDeviceOpen, NoNameAmongSeveralDevicesIsRefused) {
    const Error error = error_of([] { (void)VerbsDevice::open("", 1); });
    EXPECT_TRUE(says(error, "Say which")) << error.what();
    EXPECT_TRUE(says(error, variable("POLLCORE_RXE_PEER"))) << error.what();
}

TEST(VerbsDeviceOpen, APortThatDoesNotExistIsRefused) {
    for (const std::uint8_t port : std::initializer_list<std::uint8_t>{0, 2, 255}) {
        const Error error = error_of([&] { (void)VerbsDevice::open(variable("POLLCORE_RXE_DEVICE"), port); });
        EXPECT_TRUE(says(error, "no port " + std::to_string(port))) << error.what();
        EXPECT_TRUE(says(error, "1 to 1")) << error.what();
    }
}

TEST(VerbsDeviceOpen, APortThatIsDownIsRefused) {
    const std::string set = "ip link set " + variable("POLLCORE_RXE_NETDEV");
    ASSERT_EQ(std::system((set + " down").c_str()), 0);
    const Error error = error_of([] { (void)rxe::open_device(); });
    ASSERT_EQ(std::system((set + " up").c_str()), 0);
    EXPECT_EQ(error.code(), std::errc::network_down);
    EXPECT_TRUE(says(error, "not active")) << error.what();
}

TEST_F(VerbsDeviceTest, TellsWhatSoftRoceHas) {
    EXPECT_EQ(device_->name(), variable("POLLCORE_RXE_DEVICE"));
    EXPECT_NE(device_->describe().find("verbs " + device_->name()), std::string::npos);
    EXPECT_FALSE(device_->is_software());
    EXPECT_EQ(device_->numa_node(), -1);
    const DeviceLimits& limits = device_->limits();
    EXPECT_EQ(limits.cqes_max, 32767u);
    EXPECT_EQ(limits.sges_max, 32u);
    EXPECT_EQ(limits.inline_max, 512u);
    EXPECT_EQ(limits.rd_atomic_max, 128u);
    EXPECT_GE(limits.qp_depth_max, 16384u);
    EXPECT_GE(limits.qps_max, 1024u);
    EXPECT_GE(limits.comp_vectors, 1u);
    EXPECT_TRUE(limits.atomics);
    EXPECT_FALSE(limits.thread_domains);
    EXPECT_TRUE(limits.extended_cqs);
    EXPECT_EQ(limits.poll.why, kPollOfSoftRoce.why);
    EXPECT_EQ(device_->query_port().state, IBV_PORT_ACTIVE);
}

TEST_F(VerbsDeviceTest, TheGidTableHasTheAddressAsRoceV2) {
    std::array<std::uint8_t, 4> wanted{};
    ASSERT_EQ(std::sscanf(variable("POLLCORE_RXE_ADDRESS").c_str(), "%hhu.%hhu.%hhu.%hhu", &wanted[0], &wanted[1],
                          &wanted[2], &wanted[3]),
              4);
    bool found = false;
    for (const GidEntry& entry : device_->gids()) {
        EXPECT_EQ(entry.type, IBV_GID_TYPE_ROCE_V2);
        found = found || std::equal(wanted.begin(), wanted.end(), entry.gid.raw + 12);
    }
    EXPECT_TRUE(found);
}

TEST_F(VerbsDeviceTest, CompletionQueuesAreMadeSingleThreadedAndShared) {
    const auto domain = device_->create_thread_domain();
    for (ThreadDomain* owner : {domain.get(), static_cast<ThreadDomain*>(nullptr)}) {
        int context = 0;
        const UniqueCq cq(device_->create_cq({.cqe = 100, .domain = owner, .cq_context = &context}), {device_.get()});
        EXPECT_GE(cq->cqe, 100);
        EXPECT_EQ(cq->cq_context, &context);
        ibv_wc wc{};
        EXPECT_EQ(ibv_poll_cq(cq.get(), 1, &wc), 0);
    }
}

TEST_F(VerbsDeviceTest, ADomainOfAnotherDeviceIsRefused) {
    const auto peer = rxe::open_peer();
    const auto domain = peer->create_thread_domain();
    EXPECT_TRUE(
        says(error_of([&] { (void)device_->create_cq({.cqe = 1, .domain = domain.get()}); }), "another device"));
}

TEST_F(VerbsDeviceTest, CompletionQueuesBeyondTheLimitsAreRefusedWithTheLimit) {
    EXPECT_TRUE(says(error_of([&] { (void)device_->create_cq({.cqe = 0}); }), "at least 1"));
    const Error error = error_of([&] { (void)device_->create_cq({.cqe = 32768}); });
    EXPECT_TRUE(says(error, "32768") && says(error, "32767")) << error.what();
    const std::uint32_t vectors = device_->limits().comp_vectors;
    EXPECT_TRUE(says(error_of([&] { (void)device_->create_cq({.cqe = 1, .comp_vector = vectors}); }), "vector"));
    // The largest size is not refused.
    const UniqueCq cq(device_->create_cq({.cqe = 32767}), {device_.get()});
    EXPECT_GE(cq->cqe, 32767);
}

class VerbsQueuePairTest : public VerbsDeviceTest {
protected:
    QpOptions options() {
        QpOptions options;
        options.pd = pd_.get();
        options.send_cq = options.recv_cq = cq_.get();
        options.cap = {4, 4, 1, 1, 0};
        return options;
    }
    UniqueQp make() {
        QpOptions wanted = options();
        return UniqueQp(device_->create_qp(wanted), {device_.get()});
    }
    void to_init(ibv_qp* qp) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        device_->modify(qp, attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    }

    UniquePd pd_{device_->create_pd(), {device_.get()}};
    UniqueCq cq_{device_->create_cq({.cqe = 64}), {device_.get()}};
};

TEST_F(VerbsQueuePairTest, IsMadeInResetWithAtLeastWhatWasAsked) {
    QpOptions wanted = options();
    wanted.cap = {100, 50, 4, 3, 512};
    wanted.qp_context = this;
    const UniqueQp qp(device_->create_qp(wanted), {device_.get()});
    EXPECT_GE(wanted.cap.max_send_wr, 100u);
    EXPECT_GE(wanted.cap.max_recv_wr, 50u);
    EXPECT_GE(wanted.cap.max_send_sge, 4u);
    EXPECT_GE(wanted.cap.max_inline_data, 512u);
    EXPECT_EQ(qp->qp_context, this);
    EXPECT_EQ(device_->query(qp.get(), IBV_QP_STATE).qp_state, IBV_QPS_RESET);
}

TEST_F(VerbsQueuePairTest, IsMadeInAThreadDomain) {
    const auto domain = device_->create_thread_domain();
    const UniqueCq cq(device_->create_cq({.cqe = 64, .domain = domain.get()}), {device_.get()});
    QpOptions wanted = options();
    wanted.domain = domain.get();
    wanted.send_cq = wanted.recv_cq = cq.get();
    const UniqueQp qp(device_->create_qp(wanted), {device_.get()});
    EXPECT_NE(qp->qp_num, 0u);
}

TEST_F(VerbsQueuePairTest, BeyondALimitIsRefusedWithTheLimit) {
    const DeviceLimits& limits = device_->limits();
    const auto refused = [&](auto change, std::uint64_t asked, std::uint64_t available) {
        QpOptions wanted = options();
        change(wanted.cap);
        const Error error = error_of([&] { (void)device_->create_qp(wanted); });
        EXPECT_TRUE(says(error, std::to_string(asked)) && says(error, std::to_string(available))) << error.what();
    };
    refused([](auto& cap) { cap.max_inline_data = 513; }, 513, 512);
    refused([](auto& cap) { cap.max_send_sge = 33; }, 33, 32);
    refused([](auto& cap) { cap.max_recv_sge = 33; }, 33, 32);
    const std::uint32_t depth = limits.qp_depth_max + 1;
    refused([&](auto& cap) { cap.max_send_wr = depth; }, depth, limits.qp_depth_max);
    refused([&](auto& cap) { cap.max_recv_wr = depth; }, depth, limits.qp_depth_max);
}

TEST_F(VerbsQueuePairTest, AWrongChangeOfStateNamesBothStates) {
    const UniqueQp qp = make();
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    const Error error = error_of([&] { device_->modify(qp.get(), attr, IBV_QP_STATE); });
    EXPECT_EQ(error.code(), std::errc::invalid_argument);
    EXPECT_TRUE(says(error, "from RESET to RTS")) << error.what();
    EXPECT_TRUE(says(error, device_->name())) << error.what();
    to_init(qp.get());
    EXPECT_EQ(device_->query(qp.get(), IBV_QP_STATE).qp_state, IBV_QPS_INIT);
    attr.qp_state = IBV_QPS_RESET;
    device_->modify(qp.get(), attr, IBV_QP_STATE);
    EXPECT_EQ(device_->query(qp.get(), IBV_QP_STATE).qp_state, IBV_QPS_RESET);
}

TEST_F(VerbsQueuePairTest, WhatIsInUseSaysBusyAndIsDestroyedLater) {
    UniqueQp qp = make();
    alignas(4096) std::array<char, 4096> memory{};
    UniqueMr mr(device_->register_memory(pd_.get(), memory.data(), memory.size(), 0, IBV_ACCESS_LOCAL_WRITE),
                {device_.get()});
    EXPECT_EQ(device_->destroy(cq_.get()), EBUSY);
    EXPECT_EQ(device_->destroy(pd_.get()), EBUSY);
    EXPECT_EQ(device_->destroy(qp.release()), 0);
    EXPECT_EQ(device_->destroy(pd_.get()), EBUSY);
    EXPECT_EQ(device_->destroy(mr.release()), 0);
    EXPECT_EQ(device_->destroy(cq_.release()), 0);
    EXPECT_EQ(device_->destroy(pd_.release()), 0);
}

TEST_F(VerbsQueuePairTest, MemoryIsRegisteredAtAnAddressOfTheCallersChoice) {
    alignas(4096) static std::array<char, 1 << 16> memory{};
    const UniqueMr mr(device_->register_memory(pd_.get(), memory.data() + 8, memory.size() - 8, 0x1008,
                                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
                      {device_.get()});
    EXPECT_NE(mr->rkey, 0u);
    EXPECT_EQ(mr->length, memory.size() - 8);
    const Error error = error_of(
        [&] { (void)device_->register_memory(pd_.get(), memory.data() + 8, 8, 0x1000, IBV_ACCESS_LOCAL_WRITE); });
    EXPECT_TRUE(says(error, "within a page")) << error.what();
}

TEST_F(VerbsQueuePairTest, MemoryThatCannotBeRegisteredIsRefused) {
    char byte = 0;
    EXPECT_TRUE(says(error_of([&] {
                         (void)device_->register_memory(pd_.get(), &byte, 1, reinterpret_cast<std::uintptr_t>(&byte),
                                                        IBV_ACCESS_REMOTE_WRITE);
                     }),
                     "local write"));
    // Nothing is mapped at this low address.
    const Error error = error_of([&] {
        (void)device_->register_memory(pd_.get(), reinterpret_cast<void*>(4096), 4096, 0x7654'3000,
                                       IBV_ACCESS_LOCAL_WRITE);
    });
    EXPECT_EQ(error.code(), std::errc::bad_address) << error.what();
    EXPECT_TRUE(says(error, "4096 bytes by the address 0x76543000 on")) << error.what();
    EXPECT_FALSE(says(error, "0x1000 ")) << error.what();
}

TEST_F(VerbsQueuePairTest, TooLittleLockedMemoryIsSaidWithTheLimit) {
    // The limit does not apply to root, so a child process gives up root's privilege.
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const rlimit limit{65536, 65536};
        if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setuid(65534) != 0) {
            ::_exit(2);
        }
        try {
            const auto device = rxe::open_device();
            const UniquePd pd(device->create_pd(), {device.get()});
            std::vector<char> memory(1 << 20);
            (void)device->register_memory(pd.get(), memory.data(), memory.size(),
                                          reinterpret_cast<std::uintptr_t>(memory.data()), IBV_ACCESS_LOCAL_WRITE);
            ::_exit(3);
        } catch (const Error& error) {
            const bool good = error.code() == std::errc::not_enough_memory && says(error, "RLIMIT_MEMLOCK") &&
                              says(error, "65536 bytes") && says(error, "1048576 bytes");
            std::fprintf(stderr, "%s\n", error.what());
            ::_exit(good ? 0 : 4);
        }
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(VerbsQueuePairTest, AsynchronousEventsAreTakenWithoutWaitingAndAcknowledged) {
    EXPECT_FALSE(device_->next_async_event().has_value());
    UniqueQp qp = make();
    to_init(qp.get());
    // A port that goes down and up again raises events.
    const std::string set = "ip link set " + variable("POLLCORE_RXE_NETDEV");
    ASSERT_EQ(std::system((set + " down").c_str()), 0);
    ASSERT_EQ(std::system((set + " up").c_str()), 0);
    bool down = false;
    bool up = false;
    while (!(down && up)) {
        pollfd waiting{device_->async_fd(), POLLIN, 0};
        ASSERT_EQ(::poll(&waiting, 1, 5000), 1) << "no event came in 5 s";
        while (const auto event = device_->next_async_event()) {
            down = down || event->event_type == IBV_EVENT_PORT_ERR;
            up = up || event->event_type == IBV_EVENT_PORT_ACTIVE;
            device_->acknowledge(*event);
        }
    }
    EXPECT_FALSE(device_->next_async_event().has_value());
    EXPECT_EQ(device_->query_port().state, IBV_PORT_ACTIVE);
}

TEST_F(VerbsQueuePairTest, AFullCompletionQueueSaysSoByAnEventThatNamesIt) {
    UniqueCq small(device_->create_cq({.cqe = 1}), {device_.get()});
    QpOptions wanted = options();
    wanted.send_cq = wanted.recv_cq = small.get();
    wanted.cap.max_send_wr = 16;
    UniqueQp qp(device_->create_qp(wanted), {device_.get()});
    to_init(qp.get());
    // Each send on a QP in ERR is flushed into the CQ, so no peer is needed to fill it.
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    device_->modify(qp.get(), attr, IBV_QP_STATE);
    for (int i = 0; i <= small->cqe + 1; ++i) {
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(qp.get(), &wr, &bad), 0);
    }
    pollfd waiting{device_->async_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 5000), 1) << "no event came in 5 s";
    const auto event = device_->next_async_event();
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->event_type, IBV_EVENT_CQ_ERR);
    EXPECT_EQ(event->element.cq, small.get());
    device_->acknowledge(*event);
    EXPECT_EQ(device_->destroy(qp.release()), 0);
    while (const auto more = device_->next_async_event()) {
        device_->acknowledge(*more);
    }
    EXPECT_EQ(device_->destroy(small.release()), 0);  // would hang if an event were not acknowledged
}

}  // namespace
}  // namespace pollcore
