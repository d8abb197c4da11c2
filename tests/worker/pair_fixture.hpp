// One session of a worker that is stepped by hand, and two queue pairs of it that are connected with each other.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <tuple>

#include "stepped_world.hpp"

namespace pollcore::testing {

class WorkerPairTest : public ::testing::Test {
protected:
    void make(const SteppedWorld::QpShape& shape = {}, const SteppedWorld::Options& options = {}) {
        world = std::make_unique<SteppedWorld>(options);
        std::tie(a, b) = world->pair(shape);
        region = &world->register_memory(memory.data(), memory.size());
    }
    [[nodiscard]] WorkRequest write(std::uint64_t tag, std::uint8_t flags = kSignaled) const {
        WorkRequest request = SteppedWorld::write(tag, *a, *region);
        request.flags = flags;
        return request;
    }
    /// On b.
    [[nodiscard]] WorkRequest receive(std::uint64_t tag = 0) const {
        return {.tag = tag,
                .sge = {reinterpret_cast<std::uintptr_t>(memory.data()) + 1024, 64, region->lkey},
                .qp = b->handle(),
                .opcode = Opcode::recv,
                .num_sge = 1};
    }
    /// For what no session writes.
    [[nodiscard]] RingProducer<WorkRequest> raw() const {
        const SteppedWorld::End& end = *world->ends[0];
        return {at_offset<void>(end.block, end.layout.submissions()), end.layout.submission_slots};
    }

    alignas(64) std::array<std::byte, 4096> memory{};
    std::unique_ptr<SteppedWorld> world;
    SteppedWorld::Qp* a = nullptr;
    SteppedWorld::Qp* b = nullptr;
    ibv_mr* region = nullptr;
};

}  // namespace pollcore::testing
