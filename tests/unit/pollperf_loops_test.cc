// pollperf's loops for one operation at a time, on a scripted path. The path is a few bytes of memory that change as
// the test says.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ends_in_memory.hpp"
#include "pollperf/measure/messages.hpp"
#include "pollperf/measure/ping_pong.hpp"
#include "pollperf/paths/end_state.hpp"

namespace pollcore::perf {
namespace {

// A path with both ends of all connections in one memory. Each poll carries out the oldest request.
class ScriptedPath : public test::EndsInMemory {
public:
    using EndsInMemory::EndsInMemory;
    [[nodiscard]] static constexpr std::uint32_t spins_per_look() noexcept { return Watch::kSpinsPerLook; }

    std::uint32_t issue(unsigned i, std::uint32_t n, bool last) {
        if (no_room_for > 0) {
            --no_room_for;
            return 0;
        }
        for (std::uint32_t k = 0; k < n; ++k) {
            const bool signaled = is_signaled(end(i), last && k + 1 == n);
            requests_.push_back(make(workload().op, i, signaled));
        }
        if (on_issue) {
            on_issue(i);
        }
        return n;
    }
    void post_once(Op op, unsigned i) { requests_.push_back(make(op, i, true)); }
    // The device carries out this request before those that were posted earlier by the other end.
    void overtake(unsigned i) { requests_.push_front(make(workload().op, i, true)); }

    std::size_t poll(std::chrono::nanoseconds = {}) {
        if (on_poll) {
            on_poll();
        }
        if (requests_.empty()) {
            return 0;
        }
        const Request request = std::move(requests_.front());
        requests_.pop_front();
        if (lose_from && carried_out >= *lose_from) {
            return 0;
        }
        EndState& near = end(request.end);
        const unsigned peer = peer_of(request.end);
        carry_out(request, near, end(peer));
        if (request.signaled) {
            near.completed = request.number + 1;
            ++signals;
        }
        if (on_arrival && request.op == workload().op) {
            on_arrival(peer);
        }
        return takes_receive(request.op) + std::size_t{request.signaled};
    }

    void look_after_peer(unsigned, const char*) { ++looked_after_peer; }

    std::uint64_t carried_out = 0;  // operations of the workload
    std::uint64_t signals = 0;
    std::uint64_t spoil_message = ~0ull;
    std::size_t spoil_byte = 0;
    std::optional<std::uint64_t> lose_from;
    std::uint64_t no_room_for = 0;  // so many times
    unsigned looked_after_peer = 0;
    std::function<void(unsigned end)> on_issue;
    std::function<void(unsigned end)> on_arrival;
    std::function<void()> on_poll;

private:
    struct Request {
        Op op;
        unsigned end;
        std::uint64_t number;
        bool signaled;
        std::vector<std::byte> bytes;
    };

    Request make(Op op, unsigned i, bool signaled) {
        EndState& state = end(i);
        const std::byte* out = state.memory + layout().out(state.issued);
        return {op, i, state.issued++, signaled, {out, out + bytes_of(op)}};
    }

    void carry_out(const Request& request, EndState& near, EndState& far) {
        std::byte* const out = near.memory + layout().out(request.number);
        expect_unchanged(request.op, out, request.bytes);
        std::byte* const destination =
            transfer(request.op, request.bytes, request.number - near.issued_before, out, far.memory + layout().in(0),
                     far.memory + layout().receive(far.received));
        if (takes_receive(request.op)) {
            EXPECT_LT(far.received, far.reposted) << "no receive was there";
            ++far.received;
        }
        if (request.op == workload().op && carried_out++ == spoil_message) {
            destination[spoil_byte] ^= std::byte{0x10};
        }
    }

    std::deque<Request> requests_;
};

constexpr std::uint32_t kReceives = 8;

[[nodiscard]] Workload one_at_a_time(Op op, std::uint32_t size, bool verify) {
    return {.op = op, .size = is_atomic(op) ? kAtomicSize : size, .verify = verify, .one_sided = is_answered(op)};
}

struct LoopRun {
    Workload workload;
    unsigned connections;
    ScriptedPath path;
    Watch watch{std::chrono::milliseconds(150)};
    std::optional<PingPong<ScriptedPath>> loops;

    explicit LoopRun(const Workload& first, unsigned n = 1, std::uint32_t receives = kReceives)
        : connections(n), path(EndLayout(first.size, 1, receives, first.transport), n) {
        begin(first);
    }
    // As a path run does for each workload.
    void begin(const Workload& next) {
        workload = next;
        begin_workload(path, workload);
        path.prepare(workload);
        loops.emplace(path, workload, watch, connections);
    }
    void operator()(std::size_t iterations, Role role = Role::both) {
        std::vector<std::uint64_t> samples(iterations);
        loops->run(role, samples);
    }
    std::string failure(std::size_t iterations, Role role = Role::both) {
        try {
            (*this)(iterations, role);
        } catch (const MeasurementError& error) {
            return error.what();
        }
        return "nothing was found";
    }
};

// ---- both ends ----

TEST(PollperfLoops, EveryOperationGoesRoundWithAndWithoutChecks) {
    for (const Op op : kOps) {
        for (const bool verify : {false, true}) {
            for (const std::uint32_t size : {1u, 8u, 300u}) {
                LoopRun run(one_at_a_time(op, size, verify));
                // 700 is more than one byte can count.
                EXPECT_NO_THROW(run(700)) << op_name(op) << ' ' << size;
                EXPECT_EQ(run.path.carried_out, run.workload.one_sided ? 700u : 1400u) << op_name(op);
                for (unsigned end = 0; end < 2; ++end) {
                    EXPECT_TRUE(run.path.end(end).idle()) << op_name(op);
                }
            }
        }
    }
}

TEST(PollperfLoops, AWriteIsOneSidedIfThePeerDoesNotAnswer) {
    for (const bool verify : {false, true}) {
        Workload write = one_at_a_time(Op::write, 300, verify);
        write.one_sided = true;
        LoopRun run(write);
        EXPECT_NO_THROW(run(700));
        EXPECT_EQ(run.path.carried_out, 700u);
        EXPECT_EQ(run.path.end(1).issued, 0u);
        run.path.spoil_message = 706;
        run.path.spoil_byte = 299;
        const std::string failure = run.failure(20);
        EXPECT_EQ(failure.find("message 707 is wrong at byte 299 of 300") != std::string::npos, verify) << failure;
    }
}

TEST(PollperfLoops, ConnectionsTakeTurns) {
    constexpr unsigned kConnections = 3;
    for (const Op op : kOps) {
        for (const bool verify : {false, true}) {
            LoopRun run(one_at_a_time(op, 64, verify), kConnections);
            std::vector<unsigned> order;
            run.path.on_issue = [&](unsigned end) { order.push_back(end); };
            run(100);
            run(1);  // goes on with the connection whose turn it is
            run(100);
            std::size_t turn = 0;
            for (const unsigned end : order) {
                if (end < kConnections) {
                    EXPECT_EQ(end, turn++ % kConnections) << op_name(op);
                }
            }
            EXPECT_EQ(turn, 201u) << op_name(op);
            for (unsigned end = 0; end < 2 * kConnections; ++end) {
                EXPECT_TRUE(run.path.end(end).idle()) << op_name(op) << ", end " << end;
            }
        }
    }
}

TEST(PollperfLoops, DatagramsAreFoundBehindTheirHeader) {
    for (const QpType transport : {QpType::rc, QpType::uc, QpType::ud}) {
        for (const bool verify : {false, true}) {
            Workload send = one_at_a_time(Op::send, 200, verify);
            send.transport = transport;
            LoopRun run(send, 2);
            EXPECT_EQ(run.path.layout().receive_offset, transport == QpType::ud ? 40u : 0u);
            EXPECT_NO_THROW(run(700)) << transport_name(transport);
        }
    }
}

TEST(PollperfLoops, OldMemoryIsNotTakenForTheFirstMessage) {
    for (std::uint32_t size = 1; size <= 600; ++size) {
        LoopRun run(one_at_a_time(Op::write, size, false));
        bool early = false;
        std::uint64_t before = 0;
        run.path.on_issue = [&](unsigned end) { early = early || (end == 1 && run.path.carried_out == before); };
        run(1);
        EXPECT_FALSE(early) << size << ": answered before the first write was carried out";
        // The last byte in the memory is now that of the next workload's first message.
        before = run.path.carried_out;
        run.begin(run.workload);
        run(1);
        ASSERT_FALSE(early) << size << ": took the last message of the workload before for one of this";
        EXPECT_EQ(run.path.carried_out, 4u);
    }
}

TEST(PollperfLoops, AnAddedWordMayHoldAnythingAtFirst) {
    Workload add = one_at_a_time(Op::fetch_add, kAtomicSize, true);
    LoopRun run(add);
    const std::uint64_t old = 0x1234567890;
    std::memcpy(run.path.end(1).memory + run.path.layout().in(0), &old, sizeof old);
    EXPECT_NO_THROW(run(100));
}

// ---- checks ----

TEST(PollperfLoops, OneChangedBitIsFoundWithMessageAndPosition) {
    for (const Op op : {Op::send, Op::write, Op::write_imm, Op::read}) {
        for (const std::size_t byte : {0, 123, 198}) {
            LoopRun run(one_at_a_time(op, 200, true));
            // Both values mean the near end's seventh message. Without answers, each message counts once.
            run.path.spoil_message = op == Op::read ? 6 : 12;
            run.path.spoil_byte = byte;
            const std::string failure = run.failure(20);
            EXPECT_NE(failure.find(op_name(op)), std::string::npos) << failure;
            EXPECT_NE(failure.find("message 7 is wrong at byte " + std::to_string(byte) + " of 200"), std::string::npos)
                << failure;
        }
    }
}

TEST(PollperfLoops, OneChangedBitIsFoundInTheAnswersToo) {
    for (const Op op : {Op::send, Op::write, Op::write_imm}) {
        LoopRun run(one_at_a_time(op, 200, true), 2);
        run.path.spoil_message = 13;  // the fourth answer on the first connection
        run.path.spoil_byte = 3;
        const std::string failure = run.failure(20);
        EXPECT_NE(failure.find("message 4 is wrong at byte 3 of 200"), std::string::npos) << failure;
    }
}

TEST(PollperfLoops, ALostAtomicIsFound) {
    for (const Op op : {Op::fetch_add, Op::compare_swap}) {
        LoopRun run(one_at_a_time(op, kAtomicSize, true));
        run.path.spoil_message = 5;
        EXPECT_EQ(run.failure(20), "path direct, " + std::string(op_name(op)) + " 6: the word held 0x15, not 0x5");
    }
}

TEST(PollperfLoops, WithoutChecksNothingIsFound) {
    for (const Op op : kOps) {
        if (op == Op::write) {
            continue;  // its last byte is awaited
        }
        LoopRun run(one_at_a_time(op, 200, false));
        run.path.spoil_message = 6;
        EXPECT_NO_THROW(run(20)) << op_name(op);
    }
}

// ---- waits ----

TEST(PollperfLoops, AStalledPeerIsReportedInTimeWithWhoWaitsForWhat) {
    const auto lost = [](Op op, std::uint64_t from, bool inlined) {
        Workload workload = one_at_a_time(op, 8, false);
        workload.inlined = inlined;
        LoopRun run(workload);
        run.path.lose_from = from;
        std::string failure = run.failure(20);
        EXPECT_GE(run.path.looked_after_peer, 1u) << failure;
        return failure;
    };
    EXPECT_EQ(lost(Op::send, 4, false), "end 1 waits for a message");  // from the near end's third message on
    EXPECT_EQ(lost(Op::write_imm, 5, false), "end 0 waits for a message");
    EXPECT_EQ(lost(Op::write, 5, true), "end 0 waits for the peer's write");
    EXPECT_EQ(lost(Op::read, 2, false), "end 0 waits for the completion of its request");
    EXPECT_EQ(lost(Op::compare_swap, 2, false), "end 0 waits for the completion of its request");
}

TEST(PollperfLoops, AStallOfTheSecondConnectionNamesItsEnd) {
    LoopRun run(one_at_a_time(Op::send, 8, false), 2);
    run.path.lose_from = 6;
    EXPECT_EQ(run.failure(20), "end 3 waits for a message");
}

TEST(PollperfLoops, AFullQueueIsWaitedForButNotForEver) {
    for (const Op op : kOps) {
        LoopRun run(one_at_a_time(op, 8, false));
        run.path.no_room_for = 5;
        EXPECT_NO_THROW(run(20)) << op_name(op);
        EXPECT_EQ(run.path.carried_out, run.workload.one_sided ? 20u : 40u) << op_name(op);
    }
    LoopRun run(one_at_a_time(Op::send, 8, false));
    run.path.no_room_for = ~0ull;
    EXPECT_EQ(run.failure(20), "end 0 waits for room for its request");
}

TEST(PollperfLoops, ALongWaitLooksAboutAndEndsIfThatThrows) {
    LoopRun run(one_at_a_time(Op::send, 8, false));
    run.watch = Watch(std::chrono::seconds(20), [] { throw MeasurementError("the server has left"); });
    run.path.lose_from = 4;
    EXPECT_EQ(run.failure(20), "the server has left");
}

// ---- completions ----

TEST(PollperfLoops, TheLastRequestOfARunHasACompletionSoThatItEnds) {
    for (const Op op : {Op::send, Op::write, Op::write_imm}) {
        for (const unsigned connections : {1u, 2u, 5u}) {
            Workload workload = one_at_a_time(op, 8, false);
            workload.inlined = true;
            workload.signal_every = 1000;
            LoopRun run(workload, connections);
            for (std::size_t iterations = 1; iterations <= 40; ++iterations) {
                ASSERT_NO_THROW(run(iterations)) << op_name(op) << ' ' << connections << ' ' << iterations;
                for (unsigned end = 0; end < 2 * connections; ++end) {
                    ASSERT_TRUE(run.path.end(end).idle()) << op_name(op) << ' ' << connections << ' ' << iterations;
                }
            }
        }
    }
}

TEST(PollperfLoops, OnlySomeRequestsHaveACompletion) {
    Workload workload = one_at_a_time(Op::send, 8, false);
    workload.signal_every = 16;
    LoopRun run(workload);
    run(160);
    EXPECT_EQ(run.path.signals, 20u);  // ten at each end
    run(1);
    EXPECT_EQ(run.path.signals, 22u);
}

// The share of a run's time that is in its samples.
double share_in_samples(LoopRun& run, std::size_t iterations) {
    std::vector<std::uint64_t> samples(iterations);
    const std::uint64_t begin = stamp();
    run.loops->run(Role::both, samples);
    const std::uint64_t wall = stamp() - begin;
    const std::uint64_t sum = std::accumulate(samples.begin(), samples.end(), std::uint64_t{0});
    return static_cast<double>(sum) / static_cast<double>(wall);
}

TEST(PollperfLoops, SamplesAddUpToTheTimeThatPassed) {
    LoopRun run(one_at_a_time(Op::send, 8, false));
    // The samples cover the time except the first time stamp and the last completion. A preemption may stretch these
    // two.
    double covered = 0;
    for (int attempt = 0; attempt < 20 && covered < 0.5; ++attempt) {
        covered = share_in_samples(run, 20000);
        EXPECT_LE(covered, 1);
    }
    EXPECT_GE(covered, 0.5);
}

TEST(PollperfLoops, WithChecksTheirTimeIsInNoSample) {
    LoopRun run(one_at_a_time(Op::send, 60'000, true));
    // Four passes over all bytes are not measured, and copies are. A preemption may stretch a sample.
    double covered = 1;
    for (int attempt = 0; attempt < 20 && covered >= 0.5; ++attempt) {
        covered = share_in_samples(run, 50);
    }
    EXPECT_LT(covered, 0.5);
}

TEST(PollperfLoops, NoIterationsDoNothing) {
    LoopRun run(one_at_a_time(Op::send, 8, true));
    run(0);
    EXPECT_EQ(run.path.carried_out, 0u);
}

// ---- one end in this process ----

// The program at the far ends: a client that sends the next message when it has the answer, or a server that answers.
class ScriptedPeer {
public:
    // An eager client sends its next message when the answer is on its way, before the answerer has its completion.
    ScriptedPeer(LoopRun& run, bool eager) : run_(run), eager_(eager) { run_.path.hide_far_ends(); }

    // A client that asks so often, on each connection in turn. It then sets stop().
    void ask(std::uint64_t times) {
        stop_.store(false);
        left_ = times;
        unanswered_ = times;
        run_.path.on_arrival = [this](unsigned end) {
            if (end < run_.connections) {
                return;
            }
            take(end);
            if (--unanswered_ == 0) {
                stop_.store(true);
            } else if (!eager_) {
                send_next(false);
            }
        };
        run_.path.on_issue = [this](unsigned) {
            if (eager_) {
                send_next(true);
            }
        };
        send_next(false);
    }
    // A server that answers each message.
    void answer() {
        run_.path.on_arrival = [this](unsigned end) {
            if (end >= run_.connections) {
                take(end);
                send(end, false);
            }
        };
    }

    [[nodiscard]] const std::atomic<bool>& stop() const { return stop_; }
    [[nodiscard]] std::uint64_t unanswered() const { return unanswered_; }

private:
    void take(unsigned end) {
        auto& state = run_.path.end(end);
        const std::byte* bytes = run_.workload.op == Op::send ? run_.path.received(end, state.received - 1)
                                                              : state.memory + run_.path.layout().in(0);
        if (run_.workload.verify) {
            EXPECT_EQ(first_difference({bytes, run_.workload.size}, ++taken_[end]), std::nullopt);
        }
        if (takes_receive(run_.workload.op) && run_.path.repost_due(end)) {
            run_.path.repost(end);
        }
    }
    void send_next(bool first) {
        if (left_ > 0) {
            --left_;
            send(run_.connections + next_, first);
            next_ = (next_ + 1) % run_.connections;
        }
    }
    void send(unsigned end, bool first) {
        auto& state = run_.path.end(end);
        fill({state.memory + run_.path.layout().out(0), run_.workload.size}, ++sent_[end]);
        first ? run_.path.overtake(end) : run_.path.post_once(run_.workload.op, end);
    }

    LoopRun& run_;
    const bool eager_;
    std::atomic<bool> stop_{false};
    std::uint64_t left_ = 0;
    std::uint64_t unanswered_ = 0;
    unsigned next_ = 0;
    std::vector<std::uint64_t> sent_ = std::vector<std::uint64_t>(2 * std::size_t{run_.connections});
    std::vector<std::uint64_t> taken_ = std::vector<std::uint64_t>(2 * std::size_t{run_.connections});
};

TEST(PollperfLoops, AClientCountsItsAnswersAndChecksThem) {
    for (const Op op : {Op::send, Op::write, Op::write_imm}) {
        for (const bool verify : {false, true}) {
            for (const unsigned connections : {1u, 3u}) {
                LoopRun run(one_at_a_time(op, 200, verify), connections);
                ScriptedPeer peer(run, false);
                peer.answer();
                EXPECT_NO_THROW(run(700, Role::client)) << op_name(op) << ' ' << connections;
                EXPECT_NO_THROW(run(10, Role::client)) << op_name(op) << ' ' << connections;
                EXPECT_EQ(run.path.carried_out, 1420u);
            }
        }
        LoopRun run(one_at_a_time(op, 200, true));
        ScriptedPeer peer(run, false);
        peer.answer();
        run.path.spoil_message = 9;  // the fifth answer
        run.path.spoil_byte = 17;
        const std::string failure = run.failure(20, Role::client);
        EXPECT_NE(failure.find("message 5 is wrong at byte 17 of 200"), std::string::npos) << failure;
    }
}

// The warm-up and each round of a workload are served by a call of their own.
TEST(PollperfLoops, AServerGoesOnWhereItHasStopped) {
    for (const Op op : {Op::send, Op::write, Op::write_imm}) {
        for (const bool verify : {false, true}) {
            for (const unsigned connections : {1u, 3u}) {
                LoopRun run(one_at_a_time(op, 64, verify), connections);
                ScriptedPeer peer(run, false);
                for (const std::uint64_t messages : {1u, 50u, 2u, 300u}) {
                    peer.ask(messages);
                    ASSERT_NO_THROW(run.loops->serve(peer.stop()))
                        << op_name(op) << ", " << connections << " connections, " << messages << " messages"
                        << (verify ? ", verify" : "");
                    ASSERT_EQ(peer.unanswered(), 0u);
                }
            }
        }
    }
}

// The device is slow to complete the answer. While the server polls for that completion, it already receives the
// client's next message.
TEST(PollperfLoops, AMessageThatComesEarlyIsNotMissed) {
    for (const Op op : {Op::send, Op::write, Op::write_imm}) {
        for (const bool verify : {false, true}) {
            LoopRun run(one_at_a_time(op, 64, verify), 1, 2);
            ScriptedPeer peer(run, true);
            peer.ask(50);
            ASSERT_NO_THROW(run.loops->serve(peer.stop())) << op_name(op) << (verify ? ", verify" : "");
            EXPECT_EQ(peer.unanswered(), 0u);
        }
    }
}

TEST(PollperfLoops, AServerFindsAWrongByte) {
    for (const Op op : {Op::send, Op::write, Op::write_imm}) {
        LoopRun run(one_at_a_time(op, 200, true));
        ScriptedPeer peer(run, false);
        run.path.spoil_message = 10;  // the client's sixth message
        run.path.spoil_byte = 17;
        peer.ask(20);
        try {
            run.loops->serve(peer.stop());
            ADD_FAILURE() << op_name(op);
        } catch (const MeasurementError& error) {
            EXPECT_NE(std::string(error.what()).find("message 6 is wrong at byte 17 of 200"), std::string::npos)
                << error.what();
        }
    }
}

TEST(PollperfLoops, AServerWithoutAClientStopsWhenItIsTold) {
    for (const Op op : kOps) {
        LoopRun run(one_at_a_time(op, 64, false), 2);
        run.path.hide_far_ends();
        std::atomic<bool> stop{false};
        int polls = 0;
        run.path.on_poll = [&] { stop.store(++polls == 100); };
        EXPECT_NO_THROW(run.loops->serve(stop)) << op_name(op);
        EXPECT_EQ(polls, is_answered(op) ? 0 : 100) << op_name(op);
        EXPECT_EQ(run.path.end(0).issued, 0u) << op_name(op);
    }
}

TEST(PollperfLoops, AServerWithoutAClientStallsInTime) {
    LoopRun run(one_at_a_time(Op::send, 64, false));
    run.path.hide_far_ends();
    const std::atomic<bool> stop{false};
    EXPECT_THROW(run.loops->serve(stop), MeasurementError);
}

// Only some answers have a completion. The client has all answers when it stops, so none of them holds up what follows.
TEST(PollperfLoops, AServerBeginsTheNextWorkloadWithNothingInFlight) {
    Workload send = one_at_a_time(Op::send, 64, false);
    send.signal_every = 16;
    LoopRun run(send, 2);
    ScriptedPeer sender(run, false);
    sender.ask(50);
    ASSERT_NO_THROW(run.loops->serve(sender.stop()));
    run.begin(one_at_a_time(Op::write, 64, false));  // its buffer is written only when the last request is done
    ScriptedPeer writer(run, false);
    writer.ask(50);
    ASSERT_NO_THROW(run.loops->serve(writer.stop()));
    EXPECT_EQ(writer.unanswered(), 0u);
}

}  // namespace
}  // namespace pollcore::perf
