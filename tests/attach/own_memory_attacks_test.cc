// What a process does at the kernel's device by the command descriptor of its own context harms nobody else.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attach/descriptor_attacks.hpp"
#include "attach/own_memory_fixture.hpp"
#include "thread_calls.hpp"

namespace pollcore::test {
namespace {

struct Attack {
    const char* name;
    /// Returns whether the attack did something.
    std::function<bool(CommandDescriptor&)> carry_out;
    /// The daemon notices it when it destroys its objects. It ends the process, and gives the user no more contexts.
    bool is_noticed = true;
    /// Nothing can be destroyed, because other objects use it.
    bool in_vain = false;
};

std::ostream& operator<<(std::ostream& out, const Attack& attack) {
    return out << attack.name;
}

class OwnMemoryAttacks : public OwnMemoryTest, public ::testing::WithParamInterface<Attack> {
protected:
    static void SetUpTestSuite() { counts_.emplace(::gettid()); }
    static void TearDownTestSuite() { counts_.reset(); }

private:
    /// Keeps the kernel counting from the first test to the last.
    inline static std::optional<ThreadCalls> counts_;
};

// The worker spins. It makes no system calls but to post to Soft-RoCE, and it never waits.
TEST_P(OwnMemoryAttacks, HarmNobodyElse) {
    config_.workers[0].idle = IdlePolicy::spin;
    Process daemon = start_daemon();
    Witness witness(socket());
    ASSERT_TRUE(witness.checks_more_than(10));
    const pid_t worker = thread_of(daemon.pid(), "pollcore-w0");
    const std::set<int> before = open_descriptors();
    const ThreadCalls counted(worker);
    const std::uint64_t from = witness.checked();
    {
        Attachment attachment(options());
        const std::vector<int> commands = uverbs_since(before);
        ASSERT_EQ(commands.size(), 1u);
        const MemoryRegion allocated = attachment.allocate(kBytes, Access::all());
        std::vector<std::byte> heap(kBytes);
        const MemoryRegion own = attachment.register_memory(heap.data(), heap.size(), Access::all());
        Session session = attachment.open_session();
        SharedReceiveQueue srq = attachment.create_shared_receive_queue({.session = &session, .depth = 16});
        const auto shape = [&](const SharedReceiveQueue* shared) {
            return QueuePairOptions{.shares = {{.session = &session, .send_depth = 16}},
                                    .recv_depth = 16,
                                    .srq = shared,
                                    .remote_access = RemoteAccess::all()};
        };
        QueuePair a = attachment.create_queue_pair(shape(nullptr));
        QueuePair b = attachment.create_queue_pair(shape(&srq));
        const QpInfo info_a = a.info();
        const QpInfo info_b = b.info();
        a.connect(info_b);
        b.connect(info_a);
        const AddressHandle ah = attachment.create_address_handle(info_a);

        CommandDescriptor descriptor(commands[0]);
        EXPECT_NE(GetParam().carry_out(descriptor), GetParam().in_vain);
        // Work on what is left, or is no more.
        for (int i = 0; i < 8; ++i) {
            (void)session.try_submit({.sge = allocated.sge(0, 64),
                                      .remote_addr = allocated.addr(),
                                      .rkey = allocated.rkey(),
                                      .qp = a.handle(),
                                      .opcode = Opcode::rdma_write,
                                      .flags = kSignaled,
                                      .num_sge = 1});
        }
        EXPECT_TRUE(witness.checks_more_than(witness.checked() + 100));
    }
    EXPECT_TRUE(witness.checks_more_than(from + 300)) << witness.wrong() << daemon.err();
    // A call posts at least one message of the witness. The rest is for the attacker's requests, and for the end of its
    // queue pairs.
    const std::uint64_t calls = counted.calls();
    EXPECT_LE(calls, witness.checked() - from + 64);
    EXPECT_GT(calls, 0u);
    EXPECT_EQ(counted.waits(), 0u);

    if (GetParam().is_noticed) {
        expect_error(EPERM, [&] { Attachment again(options()); });
        Attachment plain(patient({.path = socket()}));
        EXPECT_TRUE(plain.allocate(kBytes, Access::all()).valid());
    } else {
        Attachment again(options());
        std::vector<std::byte> heap(kBytes);
        EXPECT_TRUE(again.register_memory(heap.data(), heap.size(), Access::all()).valid());
    }
    EXPECT_TRUE(witness.checks_more_than(witness.checked() + 10)) << daemon.err();
    witness.join();
    EXPECT_EQ(witness.wrong(), "");
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait(), 0) << daemon.err();
}

// A CQ that the process has destroyed cannot be armed. The worker arms the CQ when it has been idle for a second, so
// the attack comes before.
TEST_F(OwnMemoryTest, AnAttackDoesNotKeepTheWorkerAwake) {
    config_.workers[0].idle = {{IdlePolicy::yield, 1s}, {IdlePolicy::event}};
    Process daemon = start_daemon();
    const std::set<int> before = open_descriptors();
    Attachment attachment(options());
    Session session = attachment.open_session();
    const QueuePair qp = attachment.create_queue_pair({.shares = {{.session = &session}}});
    CommandDescriptor descriptor(uverbs_since(before).at(0));
    EXPECT_GT(descriptor.destroy_qps() + descriptor.destroy_cqs(), 1);
    const pid_t worker = thread_of(daemon.pid(), "pollcore-w0");
    int asleep = 0;  // how often in a row
    for (const auto until = Clock::now() + kPatience; asleep < 20 && Clock::now() < until;) {
        std::this_thread::sleep_for(1ms);
        asleep = state_of(worker) == 'S' ? asleep + 1 : 0;
    }
    EXPECT_EQ(asleep, 20) << daemon.err();
}

const Attack kAttacks[] = {
    {"DestroyQPs", [](CommandDescriptor& all) { return all.destroy_qps() > 0; }},
    {"DestroyCQs", [](CommandDescriptor& all) { return all.destroy_cqs() > 0; }, false, true},
    {"DestroySRQs", [](CommandDescriptor& all) { return all.destroy_srqs() > 0; }, false, true},
    {"DestroyAHs", [](CommandDescriptor& all) { return all.destroy_ahs() > 0; }},
    {"DeregisterMRs", [](CommandDescriptor& all) { return all.deregister_mrs() > 0; }},
    {"DeallocatePDs", [](CommandDescriptor& all) { return all.deallocate_pds() > 0; }, false, true},
    {"ResetQPs", [](CommandDescriptor& all) { return all.reset_qps() > 0; }, false},
    {"ResizeCQs", [](CommandDescriptor& all) { return all.resize_cqs_and_overwrite() > 0; }, false},
    {"DestroyAll",
     [](CommandDescriptor& all) {
         return all.destroy_qps() + all.destroy_ahs() + all.destroy_srqs() + all.destroy_cqs() + all.deregister_mrs() +
                    all.deallocate_pds() >
                0;
     }},
    {"CompleteRequestsOfOthers", complete_requests_of_others, false},
    {"RaiseEventsOfNothing", raise_events_of_nothing, false},
    {"PutCQsInThePlacesOfOthers", put_cqs_in_the_places_of_others},
};

INSTANTIATE_TEST_SUITE_P(ByTheDescriptor, OwnMemoryAttacks, ::testing::ValuesIn(kAttacks),
                         [](const auto& attack) { return std::string(attack.param.name); });

}  // namespace
}  // namespace pollcore::test
