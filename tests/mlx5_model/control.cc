#include "control.h"

#include <mutex>

#include "hca_fabric.hpp"
#include "refuse.hpp"

using mlx5_model::CompletionQueue;
using mlx5_model::Fabric;
using mlx5_model::Fate;
using mlx5_model::Hca;
using mlx5_model::QueuePair;

namespace {

template <class Do>
auto locked(Do&& action) {
    Fabric& fabric = Fabric::get();
    const std::lock_guard guard(fabric.lock);
    return action(fabric);
}

Hca& hca(Fabric& fabric, const char* name) {
    Hca* found = fabric.hca(name);
    mlx5_model::require(found != nullptr, "the model has no device {}", name);
    return *found;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void mlx5_model_set_pace(const char* pace) {
    Fabric::get().set_pace(mlx5_model::pace_of(pace));
}

int mlx5_model_step(int most) {
    return locked([&](Fabric& fabric) { return fabric.step(most); });
}

int mlx5_model_serve(uint32_t qpn, int most) {
    return locked([&](Fabric& fabric) { return fabric.serve(qpn, most); });
}

void mlx5_model_set_port(const char* device, int up) {
    locked([&](Fabric& fabric) { hca(fabric, device).set_port(up != 0); });
}

void mlx5_model_remove(const char* device) {
    locked([&](Fabric& fabric) { hca(fabric, device).remove(); });
}

void mlx5_model_overrun_cq(uint32_t cqn, int times) {
    locked([&](Fabric& fabric) {
        CompletionQueue* cq = fabric.cq(cqn);
        mlx5_model::require(cq != nullptr, "the model has no CQ {:#x}", cqn);
        for (int i = 0; i < times; ++i) {
            cq->lose();
        }
    });
}

uint32_t mlx5_model_cq_of(uint32_t qpn, int of_sends) {
    return locked([&](Fabric& fabric) {
        const QueuePair* qp = fabric.qp(qpn);
        mlx5_model::require(qp != nullptr, "the model has no QP {:#x}", qpn);
        return (of_sends != 0 ? qp->send_cq() : qp->recv_cq()).number();
    });
}

void mlx5_model_on_the_wire(uint32_t requests_lost, uint32_t answers_lost, uint32_t requests_repeated, uint64_t seed) {
    locked([&](Fabric& fabric) { fabric.faults.on_the_wire({requests_lost, answers_lost, requests_repeated, seed}); });
}

void mlx5_model_lose_requests(uint32_t qpn, uint32_t count) {
    locked([&](Fabric& fabric) { fabric.faults.meet(qpn, Fate::is_lost, count); });
}

void mlx5_model_lose_answers(uint32_t qpn, uint32_t count) {
    locked([&](Fabric& fabric) { fabric.faults.meet(qpn, Fate::answer_is_lost, count); });
}

void mlx5_model_repeat_requests(uint32_t qpn, uint32_t count) {
    locked([&](Fabric& fabric) { fabric.faults.meet(qpn, Fate::arrives_twice, count); });
}

void mlx5_model_fail_send(uint32_t qpn, uint32_t after, uint8_t syndrome, uint8_t vendor_syndrome) {
    locked([&](Fabric& fabric) { fabric.faults.fail_send(qpn, after, {syndrome, vendor_syndrome}); });
}

void mlx5_model_fail_receive(uint32_t qpn, uint32_t after, uint8_t syndrome, uint8_t vendor_syndrome) {
    locked([&](Fabric& fabric) { fabric.faults.fail_receive(qpn, after, {syndrome, vendor_syndrome}); });
}

void mlx5_model_watch(int on) {
    locked([&](Fabric& fabric) { fabric.journal.watch(on != 0); });
}

int mlx5_model_watched(mlx5_model_wqe* wqes, int most) {
    return locked([&](Fabric& fabric) { return fabric.journal.take(wqes, most); });
}

void mlx5_model_doorbells(uint32_t qpn, uint64_t* records, uint64_t* rung, uint64_t* blueflame) {
    locked([&](Fabric& fabric) {
        const QueuePair* qp = fabric.qp(qpn);
        mlx5_model::require(qp != nullptr, "the model has no QP {:#x}", qpn);
        *records = qp->doorbells().records;
        *rung = qp->doorbells().rung;
        *blueflame = qp->doorbells().blueflame;
    });
}

}  // extern "C"
#pragma GCC visibility pop
