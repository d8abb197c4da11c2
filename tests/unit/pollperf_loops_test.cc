// pollperf's timed loops on a scripted path. The path is a few bytes of memory that change as the test says.
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "pollperf/timed_loops.hpp"

namespace pollcore::perf {
namespace {

// A path with both ends in one memory. Each poll carries out the oldest request.
class ScriptedPath {
public:
    static constexpr PathKind kKind = PathKind::direct;
    [[nodiscard]] static constexpr std::uint32_t spins_per_look() noexcept { return Watch::kSpinsPerLook; }

    explicit ScriptedPath(std::uint32_t size) : layout_(size) {
        for (unsigned i = 0; i < 2; ++i) {
            memory_[i] = std::make_unique<std::byte[]>(layout_.bytes());
            ends_[i].memory = memory_[i].get();
            ends_[i].reposted = kReceiveSlots;
        }
    }

    void prepare(const Workload& workload) { workload_ = workload; }
    [[nodiscard]] EndState& end(unsigned i) { return ends_[i]; }
    [[nodiscard]] const EndLayout& layout() const { return layout_; }
    [[nodiscard]] const std::byte* received(unsigned i, std::uint64_t number) {
        return ends_[i].memory + layout_.slot(number);
    }

    void issue(unsigned i, bool last) {
        const bool signaled = workload_.one_sided || workload_.buffer_reused() || last;
        ++ends_[i].issued;
        ends_[i].signaled += signaled;
        requests_.push_back({workload_.op, i, signaled});
    }
    void repost(unsigned i) { ends_[i].reposted += kRepostBatch; }

    template <class Watch>
    void run_once(Op op, Watch& watch) {
        ++ends_[kNear].issued;
        ++ends_[kNear].signaled;
        requests_.push_back({op, kNear, true});
        watch.until(*this, kNear, "a helper", [this] { return ends_[kNear].idle(); });
    }

    void poll() {
        if (requests_.empty()) {
            return;
        }
        const Request request = requests_.front();
        requests_.pop_front();
        if (lose_from && carried_out >= *lose_from) {
            return;
        }
        EndState& near = ends_[request.end];
        EndState& far = ends_[1 - request.end];
        std::byte* out = near.memory + layout_.out();
        std::byte* in = far.memory + layout_.in();
        std::byte* destination = nullptr;
        switch (request.op) {
            case Op::send:
                EXPECT_LT(far.received, far.reposted) << "no receive was there";
                destination = far.memory + layout_.slot(far.received);
                std::memcpy(destination, out, workload_.size);
                ++far.received;
                break;
            case Op::write:
                destination = in;
                std::memcpy(destination, out, workload_.size);
                break;
            case Op::read:
                destination = out;
                std::memcpy(destination, in, workload_.size);
                break;
            case Op::fetch_add: {
                destination = out;
                std::uint64_t value = 0;
                std::memcpy(&value, in, sizeof value);
                std::memcpy(out, &value, sizeof value);
                ++value;
                std::memcpy(in, &value, sizeof value);
                break;
            }
        }
        if (request.op == workload_.op && carried_out++ == spoil_message) {
            destination[spoil_byte] ^= std::byte{0x10};
        }
        near.completed += request.signaled;
    }

    void look_after_peer(unsigned, const char*) {}
    [[nodiscard]] std::string stalled(unsigned i, const char* what, std::chrono::milliseconds) const {
        return "end " + std::to_string(i) + " waits for " + what;
    }

    std::uint64_t carried_out = 0;
    std::uint64_t spoil_message = ~0ull;
    std::size_t spoil_byte = 0;
    std::optional<std::uint64_t> lose_from;

private:
    struct Request {
        Op op;
        unsigned end;
        bool signaled;
    };
    EndLayout layout_;
    Workload workload_;
    std::array<std::unique_ptr<std::byte[]>, 2> memory_;
    std::array<EndState, 2> ends_{};
    std::deque<Request> requests_;
};

struct Bench {
    Workload workload;
    ScriptedPath path;
    Watch watch{std::chrono::milliseconds(150)};

    Bench(Op op, std::uint32_t size, bool verify, bool inlined = false)
        : workload{.op = op,
                   .size = size,
                   .inlined = inlined,
                   .verify = verify,
                   .one_sided = op == Op::read || op == Op::fetch_add},
          path(size) {
        path.prepare(workload);
        begin_workload(path, workload, 2);
    }
    void operator()(std::size_t iterations) {
        std::vector<std::uint64_t> samples(iterations);
        TimedLoops<ScriptedPath>(path, workload, watch).run(Role::both, samples);
    }
    std::string failure(std::size_t iterations) {
        try {
            (*this)(iterations);
        } catch (const MeasurementError& error) {
            return error.what();
        }
        return "nothing was found";
    }
};

TEST(PollperfLoops, EveryOperationGoesRoundWithAndWithoutChecks) {
    for (const Op op : kOps) {
        for (const bool verify : {false, true}) {
            for (const std::uint32_t size : {1u, 8u, 300u}) {
                Bench run(op, op == Op::fetch_add ? kAtomicSize : size, verify);
                // 700 is more than one byte can count.
                EXPECT_NO_THROW(run(700)) << op_name(op) << ' ' << size;
                const std::uint64_t each = run.workload.one_sided ? 700 : 1400;
                EXPECT_EQ(run.path.carried_out, each) << op_name(op);
            }
        }
    }
}

TEST(PollperfLoops, OldMemoryIsNotTakenForTheFirstMessage) {
    for (std::uint32_t size = 1; size <= 600; ++size) {
        Bench run(Op::write, size, false);
        run(2);
        // If an end took old memory for a message, it would answer before the first write was carried out.
        EXPECT_EQ(run.path.carried_out, 4u) << size;
    }
}

// A client that sends its next request as soon as it has the answer, and a device that is slow to complete the answer.
// While the server polls for that completion, it already receives the client's next message.
class EagerClientPath : public ScriptedPath {
public:
    using ScriptedPath::ScriptedPath;
    void issue(unsigned i, bool last) {
        ScriptedPath::issue(i, last);
        ask();
    }
    void poll() {
        if (asked_ > 0) {
            EndState& server = end(kNear);
            fill({server.memory + layout().slot(server.received), layout().size}, ++sent_);
            ++server.received;
            --asked_;
            return;
        }
        ScriptedPath::poll();
    }
    void ask() { ++asked_; }

private:
    unsigned asked_ = 0;
    std::uint64_t sent_ = 0;
};

TEST(PollperfLoops, AMessageThatComesEarlyIsNotMissed) {
    for (const bool verify : {false, true}) {
        EagerClientPath path(64);
        const Workload workload{.op = Op::send, .size = 64, .verify = verify};
        Watch watch(std::chrono::milliseconds(150));
        path.prepare(workload);
        begin_workload(path, workload, 2);
        path.end(kFar).reposted = 1000;  // plenty, because this test does not check the client's receives
        path.ask();
        TimedLoops<EagerClientPath> loops(path, workload, watch);
        std::vector<std::uint64_t> samples(50);
        // Each run ends with waiting for the completion of the last answer.
        for (int round = 0; round < 3; ++round) {
            ASSERT_NO_THROW(loops.run(Role::server, samples)) << "round " << round << (verify ? ", verify" : "");
        }
    }
}

TEST(PollperfLoops, OneChangedBitIsFoundWithMessageAndPosition) {
    for (const Op op : {Op::send, Op::write, Op::read}) {
        Bench run(op, 200, true);
        // Both values mean the near end's seventh message; with send and write, each message has an answer, which
        // counts as well.
        run.path.spoil_message = op == Op::read ? 6 : 12;
        run.path.spoil_byte = 123;
        const std::string failure = run.failure(20);
        EXPECT_NE(failure.find(op_name(op)), std::string::npos) << failure;
        EXPECT_NE(failure.find("message 7 is wrong at byte 123 of 200"), std::string::npos) << failure;
    }
}

TEST(PollperfLoops, ALostAdditionIsFound) {
    Bench run(Op::fetch_add, kAtomicSize, true);
    run.path.spoil_message = 5;
    EXPECT_EQ(run.failure(20), "path direct, fetch-add 6: the word held 0x15, not 0x5");
}

TEST(PollperfLoops, AStalledPeerIsReportedInTimeWithWhoWaitsForWhat) {
    Bench send(Op::send, 8, false);
    send.path.lose_from = 4;  // from the near end's third message on
    EXPECT_EQ(send.failure(20), "end 1 waits for a message");
    Bench write(Op::write, 8, false, true);
    write.path.lose_from = 5;
    EXPECT_EQ(write.failure(20), "end 0 waits for the peer's write");
    Bench read(Op::read, 8, false);
    read.path.lose_from = 2;
    EXPECT_EQ(read.failure(20), "end 0 waits for the completion of its request");
}

TEST(PollperfLoops, SamplesAddUpToTheTimeThatPassed) {
    Bench run(Op::send, 8, false);
    std::vector<std::uint64_t> samples(20000);
    TimedLoops<ScriptedPath> loops(run.path, run.workload, run.watch);
    const std::uint64_t begin = stamp();
    loops.run(Role::both, samples);
    const std::uint64_t wall = stamp() - begin;
    std::uint64_t sum = 0;
    for (const std::uint64_t sample : samples) {
        sum += sample;
    }
    EXPECT_LE(sum, wall);
    // The samples cover the time except the first time stamp and the last completion. A preemption may stretch these
    // two.
    EXPECT_GE(static_cast<double>(sum), 0.5 * static_cast<double>(wall));
}

}  // namespace
}  // namespace pollcore::perf
