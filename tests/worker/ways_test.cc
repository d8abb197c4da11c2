// Ordinary requests take the fast path (worker/ordinary.hpp), and must have the same results as on the general way. One
// test runs each random program twice, the second time without ordinary queue pairs, and compares all visible results.
// The other tests compare queue pairs with and without coalesced signals, and bursts with requests one by one.
#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "stepped_world.hpp"

namespace pollcore::testing {
namespace {

constexpr int kPairs = 3;
constexpr std::uint32_t kSessions = 2;
// Size of each half of the memory. The local memory of requests is in the first half, and the remote memory in the
// second.
constexpr std::size_t kHalf = 4096;

enum class Way { ordinary, general };
/// Whether a burst is submitted by one call, or each of its requests by its own call.
enum class Burst { together, apart };

/// The parameters of a request. The handles and keys are added by the world that carries out the request.
struct Wish {
    unsigned qp = 0;  // one of the 2 * kPairs queue pairs; messages go both ways
    Opcode opcode = Opcode::send;
    std::uint8_t flags = 0;
    std::uint8_t num_sge = 1;
    std::uint32_t offset = 0;
    std::uint32_t length = 0;
    std::uint32_t remote_offset = 0;
    std::uint32_t imm_data = 0;
    bool bad_key = false;
    std::uint64_t tag = 0;
};

/// One turn of the program.
struct Turn {
    std::uint32_t session = 0;
    std::vector<Wish> wishes;
    bool burst = false;
    bool inlined = false;
    unsigned receiver = 0;  // the queue pair that gets receives before the requests are submitted
    int steps = 0;
};

class Program {
public:
    explicit Program(std::uint64_t seed) : random_(seed) {}

    Turn next() {
        Turn turn;
        turn.session = static_cast<std::uint32_t>(below(kSessions));
        turn.burst = one_in(2);
        turn.inlined = one_in(4);
        turn.receiver = static_cast<unsigned>(below(2 * kPairs));
        turn.steps = static_cast<int>(below(4));
        for (std::uint64_t n = below(12); n > 0; --n) {
            turn.wishes.push_back(wish());
        }
        return turn;
    }

private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    bool one_in(std::uint64_t n) { return below(n) == 0; }
    Wish wish() {
        constexpr std::array kOpcodes{
            Opcode::rdma_write, Opcode::rdma_write,    Opcode::rdma_read,           Opcode::send,
            Opcode::send,       Opcode::send_with_imm, Opcode::rdma_write_with_imm, Opcode::atomic_fetch_and_add};
        Wish wish{
            .qp = static_cast<unsigned>(below(2 * kPairs)), .opcode = kOpcodes[below(kOpcodes.size())], .tag = ++tag_};
        wish.flags = static_cast<std::uint8_t>((one_in(3) ? 0 : kSignaled) | (one_in(8) ? kFence : 0) |
                                               (one_in(8) ? kSolicited : 0));
        wish.offset = static_cast<std::uint32_t>(8 * below(64));
        wish.length = static_cast<std::uint32_t>(below(64));
        wish.remote_offset = static_cast<std::uint32_t>(8 * below(64));
        wish.imm_data = static_cast<std::uint32_t>(random_());
        wish.num_sge = one_in(8) ? 0 : 1;
        wish.bad_key = one_in(1000);  // the request fails at the peer and takes its queue pair to ERR
        return wish;
    }

    std::mt19937_64 random_;
    std::uint64_t tag_ = 0;
};

class Side {
public:
    Side(Way way, bool credits, bool coalesced, Burst burst = Burst::together)
        : burst_(burst), world_(options(way)), buffer_(world_.add_buffer(2 * kHalf)) {
        world_.add_session();
        world_.add_session();
        world_.add_cq();
        for (int i = 0; i < kPairs; ++i) {
            SteppedWorld::QpShape shape{
                .shares = {{0, 16, 16}, {1, 16, 0}}, .ordinary = way != Way::general, .coalesce_signals = coalesced};
            shape.flow = credits ? FlowControl::credits : FlowControl::off;
            SteppedWorld::Qp& a = world_.add_qp(shape);
            SteppedWorld::Qp& b = world_.add_qp(shape);
            world_.connect(a, b);
            world_.connect(b, a);
            qps_.push_back(&a);
            qps_.push_back(&b);
        }
    }

    /// Returns what the session answered to each submission, as numbers.
    std::vector<int> submit(const Turn& turn) {
        std::vector<int> told;
        for (int i = 0; i < 8; ++i) {
            WorkRequest receive{.tag = 1'000'000, .sge = buffer_.sge(512, 2048), .qp = qps_[turn.receiver]->handle()};
            receive.opcode = Opcode::recv;
            receive.num_sge = 1;
            told.push_back(static_cast<int>(world_.session(0).try_submit(receive)));
        }
        Session& session = world_.session(turn.session);
        std::vector<WorkRequest> requests;
        std::vector<std::array<std::byte, 64>> payloads(turn.wishes.size());
        for (std::size_t i = 0; i < turn.wishes.size(); ++i) {
            const Wish& wish = turn.wishes[i];
            requests.push_back(made(wish));
            if (turn.inlined && allows(kInlineOpcodes, wish.opcode) && wish.tag % 3 != 0) {
                for (std::size_t k = 0; k < payloads[i].size(); ++k) {
                    payloads[i][k] = static_cast<std::byte>(wish.tag * 7 + k);
                }
                requests.back() =
                    requests.back().with_inline(std::span(payloads[i]).first(wish.tag * 5 % payloads[i].size()));
            }
        }
        if (turn.burst && burst_ == Burst::together) {
            const Submitted submitted = session.try_submit(requests);
            told.push_back(static_cast<int>(submitted.accepted));
            told.push_back(static_cast<int>(submitted.refusal));
            return told;
        }
        if (turn.burst) {
            std::size_t accepted = 0;
            Refusal refusal = Refusal::none;
            while (accepted < requests.size() && (refusal = alone(session, requests[accepted])) == Refusal::none) {
                ++accepted;
            }
            told.push_back(static_cast<int>(accepted));
            told.push_back(static_cast<int>(refusal));
            return told;
        }
        for (const WorkRequest& request : requests) {
            told.push_back(static_cast<int>(alone(session, request)));
        }
        return told;
    }

    void turn(int steps) {
        for (int i = 0; i < steps; ++i) {
            world_.step();
            world_.now += 1000;
        }
        for (std::uint32_t session = 0; session < kSessions; ++session) {
            for (const Completion& completion : world_.poll(session)) {
                seen_[{session, completion.qp.index, completion.from_recv_queue()}].push_back(text(completion));
            }
        }
    }

    /// Names one queue. Each session gets the completions of a queue in order; there is no order between queues
    /// (completion.hpp).
    using Queue = std::tuple<std::uint32_t, std::uint16_t, bool>;
    [[nodiscard]] const std::map<Queue, std::vector<std::string>>& seen() const { return seen_; }
    [[nodiscard]] const auto& memory() const { return buffer_.memory; }
    [[nodiscard]] std::vector<std::uint64_t> counted() const {
        const WorkerCounters& counters = world_.worker.counters();
        return {counters.sends.value(), counters.delivered.value(), counters.retired.value(),
                counters.forced_signals.value(), counters.send_doorbells.value()};
    }

    [[nodiscard]] std::uint64_t device_completions() const { return world_.worker.counters().completions.value(); }

private:
    static SteppedWorld::Options options(Way way) {
        SteppedWorld::Options options;
        options.wide_completions = way == Way::general;  // wide completions always take the general way
        options.submission_slots = options.completion_slots = 128;
        return options;
    }
    static Refusal alone(Session& session, WorkRequest request) {
        if ((request.flags & kInline) == 0) {
            return session.try_submit(request);
        }
        const auto* const payload = reinterpret_cast<const std::byte*>(request.sge.addr);
        request.flags &= static_cast<std::uint8_t>(~kInline);
        return session.try_submit_inline(request, {payload, request.sge.length});
    }
    [[nodiscard]] WorkRequest made(const Wish& wish) const {
        WorkRequest request{.tag = wish.tag,
                            .sge = buffer_.sge(wish.length, wish.offset),
                            .remote_addr = buffer_.addr(kHalf + wish.remote_offset),
                            .rkey = wish.bad_key ? buffer_.rkey() ^ 0x5a5a : buffer_.rkey(),
                            .qp = qps_[wish.qp]->handle(),
                            .opcode = wish.opcode,
                            .flags = wish.flags,
                            .num_sge = wish.num_sge};
        if (wish.opcode == Opcode::atomic_fetch_and_add) {
            request.sge.length = 8;
            request.num_sge = 1;
            request.compare_add = 1;
            request.swap = 0;
        } else if (wish.opcode == Opcode::send_with_imm || wish.opcode == Opcode::rdma_write_with_imm) {
            request.imm_data = wish.imm_data;
        }
        return request;
    }
    // The fields that the interface promises. A failed completion has fewer valid fields (completion.hpp).
    static std::string text(const Completion& completion) {
        std::string text = std::to_string(completion.tag) + " " + std::string(status_name(completion.status)) +
                           " opcode " + std::to_string(static_cast<int>(completion.opcode)) + " flags " +
                           std::to_string(completion.flags);
        if (completion.ok()) {
            text += " length " + std::to_string(completion.byte_len);
            text += (completion.flags & kWithImm) != 0 ? " immediate " + std::to_string(completion.imm_data) : "";
        }
        return text;
    }

    Burst burst_;
    SteppedWorld world_;
    SteppedWorld::Buffer& buffer_;
    std::vector<SteppedWorld::Qp*> qps_;
    std::map<Queue, std::vector<std::string>> seen_;
};

struct Seen {
    std::size_t completions = 0;
    std::size_t failed = 0;
};

/// `more_steps` is the number of steps that are added to each turn. With enough steps, everything completes in its
/// turn.
void compare(std::uint64_t seed, Side& one, Side& other, int more_steps, Seen& seen) {
    Program program(seed);
    for (int i = 0; i < 400; ++i) {
        const Turn turn = program.next();
        ASSERT_EQ(one.submit(turn), other.submit(turn)) << "what was accepted in turn " << i;
        one.turn(turn.steps + more_steps);
        other.turn(turn.steps + more_steps);
    }
    one.turn(2000);
    other.turn(2000);
    for (const auto& [queue, completions] : one.seen()) {
        const std::vector<std::string>& others = other.seen().at(queue);
        for (std::size_t i = 0; i < std::min(completions.size(), others.size()); ++i) {
            ASSERT_EQ(completions[i], others[i]) << "completion " << i;
        }
        ASSERT_EQ(completions.size(), others.size());
    }
    ASSERT_EQ(one.seen().size(), other.seen().size());
    ASSERT_EQ(one.memory(), other.memory());
    for (const auto& [queue, completions] : one.seen()) {
        seen.completions += completions.size();
        seen.failed +=
            static_cast<std::size_t>(std::count_if(completions.begin(), completions.end(), [](const std::string& text) {
                return text.find("IBV_WC_SUCCESS") == std::string::npos;
            }));
    }
}

struct Shape {
    bool credits = false;
    bool coalesced = false;
};
std::string name_of(const Shape& shape) {
    return std::string(shape.credits ? "credits" : "no_flow_control") + (shape.coalesced ? "_coalesced_signals" : "");
}

class BothWays : public ::testing::TestWithParam<Shape> {};

TEST_P(BothWays, GiveTheSame) {
    const auto [credits, coalesced] = GetParam();
    const std::uint64_t programs = coalesced ? 20 : 40;
    Seen seen;
    for (std::uint64_t seed = 1; seed <= programs; ++seed) {
        SCOPED_TRACE(seed);
        Side ordinary(Way::ordinary, credits, coalesced);
        Side general(Way::general, credits, coalesced);
        compare(seed, ordinary, general, 0, seen);
        EXPECT_EQ(ordinary.counted(), general.counted());
        if (HasFailure()) {
            return;
        }
    }
    EXPECT_GT(seen.completions, 100 * programs);
    EXPECT_GT(seen.failed, programs);
}

INSTANTIATE_TEST_SUITE_P(With, BothWays,
                         ::testing::Values(Shape{}, Shape{.credits = true}, Shape{.coalesced = true},
                                           Shape{true, true}),
                         [](const auto& one) { return name_of(one.param); });

class Bursts : public ::testing::TestWithParam<Shape> {};

TEST_P(Bursts, AreTheSameAsTheirRequestsOneByOne) {
    const auto [credits, coalesced] = GetParam();
    constexpr std::uint64_t programs = 20;
    Seen seen;
    for (std::uint64_t seed = 1; seed <= programs; ++seed) {
        SCOPED_TRACE(seed);
        Side together(Way::ordinary, credits, coalesced);
        Side apart(Way::ordinary, credits, coalesced, Burst::apart);
        compare(seed, together, apart, 0, seen);
        EXPECT_EQ(together.counted(), apart.counted());
        if (HasFailure()) {
            return;
        }
    }
    EXPECT_GT(seen.completions, 100 * programs);
    EXPECT_GT(seen.failed, programs);
}

INSTANTIATE_TEST_SUITE_P(With, Bursts, ::testing::Values(Shape{}, Shape{.credits = true}, Shape{.coalesced = true}),
                         [](const auto& one) { return name_of(one.param); });

class CoalescedSignals : public ::testing::TestWithParam<bool> {};

TEST_P(CoalescedSignals, ChangeNothingThatIsSeenButWhen) {
    constexpr std::uint64_t programs = 5;
    Seen seen;
    for (std::uint64_t seed = 1; seed <= programs; ++seed) {
        SCOPED_TRACE(seed);
        Side coalesced(Way::ordinary, GetParam(), true);
        Side each(Way::ordinary, GetParam(), false);
        compare(seed, coalesced, each, 60, seen);
        EXPECT_LT(coalesced.device_completions(), each.device_completions());
        if (HasFailure()) {
            return;
        }
    }
    EXPECT_GT(seen.completions, 100 * programs);
    EXPECT_GT(seen.failed, programs);
}

INSTANTIATE_TEST_SUITE_P(With, CoalescedSignals, ::testing::Bool(),
                         [](const auto& one) { return name_of({.credits = one.param}); });

}  // namespace
}  // namespace pollcore::testing
