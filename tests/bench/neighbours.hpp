// The sessions of two processes at one worker. The program itself calls the worker's step(). The first process, the
// victim, is well-behaved. The second process, its neighbour, is equally busy. The neighbour is well-behaved, too, or
// fills its submission ring with garbage. Garbage must not raise the cost of the victim's requests.
//
// Thread safety: one thread uses Neighbour. Another thread may use the Neighbours object meanwhile.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "instant_device.hpp"
#include "stepped_world.hpp"

namespace pollcore::bench {

inline constexpr std::uint32_t kNeighbourSlots = 256;

class Neighbours {
public:
    static constexpr std::uint32_t kVictim = 0;
    static constexpr std::uint32_t kOther = 1;

    enum class On : std::uint8_t { software_device, instant_device };

    explicit Neighbours(On on) : world(options()) {
        if (on == On::instant_device) {
            make_instant(*world.device->context());
        }
        memory = &world.register_memory(bytes.data(), bytes.size());
        world.add_cq(8192);
        for (const std::uint32_t session : {kVictim, kOther}) {
            world.add_session(&shares[session]);
            testing::SteppedWorld::QpShape shape;
            shape.shares = {{session, kNeighbourSlots / 2, kNeighbourSlots / 2}};
            near[session] = &world.add_qp(shape);
            testing::SteppedWorld::Qp& far = world.add_qp(shape);
            world.connect(*near[session], far);
            world.connect(far, *near[session]);
        }
    }
    Neighbours(const Neighbours&) = delete;
    Neighbours& operator=(const Neighbours&) = delete;

    [[nodiscard]] WorkRequest write(std::uint32_t session) const {
        const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
        return {.sge = {address, 8, memory->lkey},
                .remote_addr = address + 4096,
                .rkey = memory->rkey,
                .qp = near[session]->handle(),
                .opcode = Opcode::rdma_write,
                .flags = kSignaled,
                .num_sge = 1};
    }
    /// Number of the neighbour's slots that the worker has taken.
    [[nodiscard]] std::uint64_t taken() { return world.ends[kOther]->worker_end->submissions().released(); }
    [[nodiscard]] bool broken() { return world.ends[kOther]->worker_end->broken(); }

    alignas(64) std::array<std::byte, 8192> bytes{};
    std::array<ClientShare, 2> shares;
    testing::SteppedWorld world;
    ibv_mr* memory = nullptr;
    std::array<testing::SteppedWorld::Qp*, 2> near{};

private:
    static testing::SteppedWorld::Options options() {
        testing::SteppedWorld::Options with;
        with.submission_slots = with.completion_slots = kNeighbourSlots;
        return with;
    }
};

class Neighbour {
public:
    static constexpr std::array<const char*, 4> kManners{"innocent", "garbage", "nearly-right", "flipped"};

    Neighbour(Neighbours& both, const std::string& manners)
        : both_(both),
          manners_(static_cast<std::size_t>(std::find(kManners.begin(), kManners.end(), manners) - kManners.begin())),
          ring_(rings() + both.world.ends[Neighbours::kOther]->layout.submissions(), kNeighbourSlots),
          completions_(rings() + both.world.ends[Neighbours::kOther]->layout.completions(),
                       both.world.ends[Neighbours::kOther]->layout.completion_ring_slots()) {
        if (manners_ == kManners.size()) {
            throw std::runtime_error("no neighbour is \"" + manners + '"');
        }
    }

    /// Fills the neighbour's submission ring and takes its completions, so that the worker always finds requests, and
    /// room for completions.
    void turn() {
        if (manners_ == 0) {
            Session& session = both_.world.session(Neighbours::kOther);
            while (session.try_submit(both_.write(Neighbours::kOther)) == Refusal::none) {
            }
            std::array<Completion, 64> done;
            (void)session.poll(done);
            return;
        }
        while (ring_.try_push(next())) {
        }
        for (int i = 0; manners_ == 3 && i < 64; ++i) {
            flip();
        }
        completions_.release(completions_.peek(64));
        completions_.publish();
    }

private:
    /// Returns the memory of the rings that the neighbour's session shares with the worker.
    [[nodiscard]] std::byte* rings() const {
        return static_cast<std::byte*>(both_.world.ends[Neighbours::kOther]->block);
    }

    [[nodiscard]] WorkRequest next() {
        if (manners_ == 1) {
            std::array<std::uint64_t, sizeof(WorkRequest) / 8> words;
            std::generate(words.begin(), words.end(), std::ref(random_));
            auto request = std::bit_cast<WorkRequest>(words);
            request.num_sge %= 2;
            request.sge.length %= 4096;
            return request;
        }
        WorkRequest request = both_.write(Neighbours::kOther);
        if (manners_ == 2) {
            // Only one field is wrong, so that many requests get past the first checks.
            switch (random_() % 6) {
                case 0: request.opcode = static_cast<Opcode>(random_() % 16); break;
                case 1: request.num_sge = 0; break;
                case 2: request.flags = static_cast<std::uint8_t>(random_()); break;
                case 3: request.sge.length = static_cast<std::uint32_t>(random_() % 65536); break;
                case 4: request.qp = both_.near[Neighbours::kVictim]->handle(); break;
                case 5: request.qp.generation = static_cast<std::uint16_t>(random_()); break;
            }
        }
        return request;
    }
    // Flips bits of any byte, except the mark of a ready slot and the bytes that give a message's length (num_sge and
    // sge.length). A worker limits the bytes that it takes from a process in each step. After a request that claims
    // gigabytes, the worker would take nothing from the neighbour for many steps.
    void flip() {
        std::byte* const slots =
            rings() + both_.world.ends[Neighbours::kOther]->layout.submissions() + sizeof(RingHeader);
        const std::size_t at = random_() % (kNeighbourSlots * sizeof(WorkRequest));
        const std::size_t in = at % sizeof(WorkRequest);
        if (in != offsetof(WorkRequest, ring_lap) && in != offsetof(WorkRequest, num_sge) &&
            in / 4 != offsetof(WorkRequest, sge.length) / 4) {
            slots[at] ^= static_cast<std::byte>(random_());
        }
    }

    Neighbours& both_;
    std::size_t manners_;
    std::mt19937_64 random_{1};
    RingProducer<WorkRequest> ring_;
    RingConsumer<Completion> completions_;
};

/// The victim's bursts, for an instruction counter. Victim and neighbour run on the same thread.
class NeighbourLoad {
public:
    NeighbourLoad(const std::string& manners, std::uint32_t burst)
        : both_(Neighbours::On::instant_device),
          neighbour_(both_, manners),
          requests_(burst, both_.write(Neighbours::kVictim)),
          completions_(burst) {}

    void prepare() { neighbour_.turn(); }
    [[gnu::noinline]] void submit() {
        if (both_.world.session(Neighbours::kVictim).try_submit(requests_).accepted != requests_.size()) {
            throw std::runtime_error("a burst was refused");
        }
    }
    /// Steps the worker until all requests of the victim have completed.
    [[gnu::noinline]] void step() {
        const WorkerSession& victim = *both_.world.ends[Neighbours::kVictim]->worker_end;
        for (int i = 0; i < 100 && (i == 0 || victim.in_flight() != 0 || victim.submissions().ready()); ++i) {
            (void)both_.world.worker.step(both_.world.now);
        }
    }
    [[gnu::noinline]] void poll() { polled_ = both_.world.session(Neighbours::kVictim).poll(completions_); }
    void check() {
        if (polled_ != requests_.size() ||
            !std::all_of(completions_.begin(), completions_.end(), [](const Completion& one) { return one.ok(); })) {
            throw std::runtime_error("not everything has completed");
        }
        if (both_.broken()) {
            throw std::runtime_error("the neighbour was ended");
        }
    }

private:
    Neighbours both_;
    Neighbour neighbour_;
    std::vector<WorkRequest> requests_;
    std::vector<Completion> completions_;
    std::size_t polled_ = 0;
};

}  // namespace pollcore::bench
