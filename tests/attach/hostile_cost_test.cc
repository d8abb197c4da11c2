// What the neighbour of a hostile process pays for it: the worker's cycles for each of its requests, beside a process that fills its
// rings with what is no request, and beside one that is as busy and as it should be. By turns in one run, each with a thread of its
// own on another core; here is the worker, stepped by hand, so that nothing but its steps is timed.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "cpus.hpp"
#include "stepped_world.hpp"

namespace pollcore::testing {
namespace {

constexpr std::uint32_t kVictim = 0;
constexpr std::uint32_t kOther = 1;
constexpr std::uint32_t kSlots = 256;
constexpr std::uint32_t kWindow = 32;

void pin(pthread_t thread, std::uint32_t cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(thread, sizeof(one), &one);
}

class Neighbours {
public:
    Neighbours() : world(options()), memory(world.register_memory(bytes.data(), bytes.size())) {
        world.add_cq(8192);
        for (const std::uint32_t session : {kVictim, kOther}) {
            world.add_session();
            world.ends[session]->worker_end->client = &shares[session];
            SteppedWorld::QpShape shape;
            shape.shares = {{session, kSlots / 2, kSlots / 2}};
            near[session] = &world.add_qp(shape);
            far[session] = &world.add_qp(shape);
            world.connect(*near[session], *far[session]);
            world.connect(*far[session], *near[session]);
        }
    }

    [[nodiscard]] WorkRequest write(std::uint32_t session) const {
        const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
        return {.sge = {address, 8, memory.lkey},
                .remote_addr = address + 4096,
                .rkey = memory.rkey,
                .qp = near[session]->handle(),
                .opcode = Opcode::rdma_write,
                .flags = kSignaled,
                .num_sge = 1};
    }
    /// The raw rings of the other one, as its process has them mapped.
    [[nodiscard]] std::byte* slots() {
        return static_cast<std::byte*>(world.ends[kOther]->block) + world.ends[kOther]->layout.submissions() + sizeof(RingHeader);
    }
    [[nodiscard]] RingProducer<WorkRequest> producer() {
        return {static_cast<std::byte*>(world.ends[kOther]->block) + world.ends[kOther]->layout.submissions(), kSlots};
    }
    [[nodiscard]] RingConsumer<Completion> completions() {
        const SessionLayout& layout = world.ends[kOther]->layout;
        return {static_cast<std::byte*>(world.ends[kOther]->block) + layout.completions(), layout.completion_ring_slots()};
    }

    alignas(64) std::array<std::byte, 8192> bytes{};
    std::array<ClientShare, 2> shares;
    SteppedWorld world;
    const ibv_mr& memory;
    std::array<SteppedWorld::Qp*, 2> near{};
    std::array<SteppedWorld::Qp*, 2> far{};

private:
    static SteppedWorld::Options options() {
        SteppedWorld::Options with;
        with.submission_slots = with.completion_slots = kSlots;
        return with;
    }
};

void innocent(Neighbours& both, const std::atomic<bool>& stop) {
    Session& session = both.world.session(kOther);
    std::array<Completion, 64> done;
    while (!stop.load(std::memory_order_relaxed)) {
        while (session.try_submit(both.write(kOther)) == Refusal::none) {
        }
        (void)session.poll(done);
    }
}

// What is pushed, `n` a time; completions are taken, so that the worker has no reason to stop.
void push(Neighbours& both, const std::atomic<bool>& stop, const std::function<WorkRequest(std::mt19937_64&)>& next, bool flips) {
    std::mt19937_64 random(1);
    RingProducer<WorkRequest> ring = both.producer();
    RingConsumer<Completion> completions = both.completions();
    std::byte* const slots = both.slots();
    while (!stop.load(std::memory_order_relaxed)) {
        while (ring.try_push(next(random))) {
        }
        // Anything but the byte that says which slots are ready, and what says how long a message is: the share of a worker is by
        // bytes, too, so who claims gigabytes has nothing of it for a long while.
        for (int i = 0; flips && i < 64; ++i) {
            const std::size_t at = random() % (kSlots * sizeof(WorkRequest));
            const std::size_t in = at % sizeof(WorkRequest);
            if (in != offsetof(WorkRequest, ring_lap) && in != offsetof(WorkRequest, num_sge) && in / 4 != offsetof(WorkRequest, sge.length) / 4) {
                slots[at] ^= static_cast<std::byte>(random());
            }
        }
        completions.release(completions.peek(64));
        completions.publish();
    }
}

void garbage(Neighbours& both, const std::atomic<bool>& stop) {
    push(both, stop, [](std::mt19937_64& random) {
        std::array<std::uint64_t, sizeof(WorkRequest) / 8> words;
        std::generate(words.begin(), words.end(), std::ref(random));
        auto request = std::bit_cast<WorkRequest>(words);
        request.num_sge %= 2;
        request.sge.length %= 4096;
        return request;
    }, false);
}
// Right but for one field, so that much of it gets past the first checks.
void nearly_right(Neighbours& both, const std::atomic<bool>& stop) {
    push(both, stop, [&both](std::mt19937_64& random) {
        WorkRequest request = both.write(kOther);
        switch (random() % 6) {
            case 0: request.opcode = static_cast<Opcode>(random() % 16); break;
            case 1: request.num_sge = 0; break;
            case 2: request.flags = static_cast<std::uint8_t>(random()); break;
            case 3: request.sge.length = static_cast<std::uint32_t>(random() % 65536); break;
            case 4: request.qp = both.near[kVictim]->handle(); break;
            case 5: request.qp.generation = static_cast<std::uint16_t>(random()); break;
        }
        return request;
    }, false);
}
void flipped(Neighbours& both, const std::atomic<bool>& stop) {
    push(both, stop, [&both](std::mt19937_64&) { return both.write(kOther); }, true);
}

struct Cost {
    double cycles = 0;  ///< of the worker's steps for each request of the victim's
    double taken = 0;   ///< slots of the other one for each of those
};
Cost cost_beside(void (*other)(Neighbours&, const std::atomic<bool>&), std::uint32_t cpu) {
    constexpr std::uint64_t kRequests = 200'000;
    constexpr std::uint64_t kWarmUp = 5'000;
    Neighbours both;
    std::atomic<bool> stop{false};
    std::thread thread([&] { other(both, stop); });
    pin(thread.native_handle(), cpu);
    Session& session = both.world.session(kVictim);
    std::array<Completion, kWindow> done;
    std::uint64_t submitted = 0;
    std::uint64_t completed = 0;
    std::uint64_t cycles = 0;
    std::uint64_t counted = 0;
    const auto& of_other = both.world.ends[kOther]->worker_end->submissions;
    std::optional<std::uint64_t> taken_before;
    while (counted < kRequests) {
        while (submitted - completed < kWindow && session.try_submit(both.write(kVictim)) == Refusal::none) {
            ++submitted;
        }
        const std::uint64_t began = cycles_now();
        both.world.step();
        const std::uint64_t took = cycles_now() - began;
        both.world.now += 100;
        const std::size_t n = session.poll(done);
        for (std::size_t i = 0; i < n; ++i) {
            EXPECT_TRUE(done[i].ok());
        }
        completed += n;
        if (!taken_before) {
            // The other one is at work, or was ended.
            if (of_other.released() > kWarmUp || both.world.ends[kOther]->worker_end->broken) {
                taken_before = of_other.released();
            }
        } else {
            cycles += took;
            counted += n;
        }
    }
    const std::uint64_t taken = of_other.released() - *taken_before;
    stop.store(true);
    thread.join();
    return {static_cast<double>(cycles) / static_cast<double>(counted), static_cast<double>(taken) / static_cast<double>(counted)};
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

TEST(HostileCost, IsNoMoreThanThatOfAnInnocentBusyProcess) {
    constexpr int kRounds = 9;
    constexpr double kMost = 1.05;
    struct Kind {
        const char* name;
        void (*other)(Neighbours&, const std::atomic<bool>&);
        std::vector<double> costs{};
        std::vector<double> taken{};
    };
    std::array kinds{Kind{"innocent", innocent}, Kind{"garbage", garbage}, Kind{"nearly right", nearly_right}, Kind{"flipped", flipped}};
    const std::vector<std::uint32_t> cpus = test::allowed_cpus();  // before this thread keeps to one
    ASSERT_GE(cpus.size(), 2u);
    pin(pthread_self(), cpus[1]);
    for (int round = 0; round < kRounds; ++round) {
        for (Kind& kind : kinds) {
            const Cost cost = cost_beside(kind.other, cpus[0]);
            kind.costs.push_back(cost.cycles);
            kind.taken.push_back(cost.taken);
        }
    }
    const double beside_innocent = median(kinds[0].costs);
    for (const Kind& kind : kinds) {
        std::printf("beside %-12s %7.1f cycles of the worker for each request, %.2f of beside the innocent one; %.2f of its slots were taken meanwhile\n",
                    kind.name, median(kind.costs), median(kind.costs) / beside_innocent, median(kind.taken));
        EXPECT_LE(median(kind.costs), kMost * beside_innocent) << kind.name;
    }
}

}  // namespace
}  // namespace pollcore::testing
