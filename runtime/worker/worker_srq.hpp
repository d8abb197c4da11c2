// A shared receive queue, as the worker sees it: its receives, and the queue pairs that use it.
//
// Only the qp_num of the work completion shows which queue pair took a receive. The qp_num is valid for any status
// (D20).
//
// Thread safety: the control thread makes the object. It belongs to the worker from the command AddSrq until the worker
// has answered ForgetSrq.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <infiniband/verbs.h>

#include "pollcore/limits.hpp"
#include "worker/qp_numbers.hpp"
#include "worker/recv_queue.hpp"
#include "worker/worker_qp.hpp"
#include "worker/worker_session.hpp"

namespace pollcore {

class alignas(kCacheLine) WorkerSrq {
public:
    struct Options {
        SrqHandle handle;
        std::uint32_t depth = 0;
        std::uint32_t sges_max = 1;
        std::uint32_t device = 0;
        std::uint32_t pd = 0;
        /// The session that submits the receives and gets all completions: its index in the worker's table.
        std::uint32_t session = 0;
    };

    explicit WorkerSrq(const Options& options)
        : options_(options),
          recvs_({.depth = options.depth, .sges_max = options.sges_max, .device = options.device, .pd = options.pd},
                 options.handle) {}
    WorkerSrq(const WorkerSrq&) = delete;
    WorkerSrq& operator=(const WorkerSrq&) = delete;

    [[nodiscard]] const Options& options() const noexcept { return options_; }
    [[nodiscard]] SrqHandle handle() const noexcept { return options_.handle; }
    [[nodiscard]] RecvQueue& recvs() noexcept { return recvs_; }
    [[nodiscard]] const RecvQueue& recvs() const noexcept { return recvs_; }
    /// The session that submits the receives. Null before add().
    [[nodiscard]] const WorkerSession* session() const noexcept { return session_; }

    /// Called when the worker gets the SRQ.
    void add(Turn& turn, WorkerSession& session) noexcept {
        session_ = &session;
        publish_record();
        recvs_.refill(turn);
    }
    /// From now on no receive is posted. Receives that the device has not completed, and later ones, get `status`.
    void retire(Status status) noexcept {
        closing_ = true;
        leftover_status_ = status;
        recvs_.end(status);
        publish_record();
    }
    [[nodiscard]] bool closing() const noexcept { return closing_; }
    /// Whether a region that one of its receives names is in use. It is not if the queue had at least one queue pair so
    /// far, and none of them had WorkerQp::Options::keeps_regions.
    [[nodiscard]] bool keeps_regions() const noexcept { return !used_ || keeps_regions_; }
    [[nodiscard]] Status leftover_status() const noexcept { return leftover_status_; }
    /// Completes the remaining receives (D22). Called when the provider's SRQ and all QPs that used it are destroyed.
    void complete_leftovers(Turn& turn) noexcept { recvs_.complete_leftovers(turn, leftover_status_); }

    /// Makes room for one more queue pair. Throws std::bad_alloc.
    void make_room() { qps_.make_room(); }
    void add(WorkerQp& qp) noexcept {
        qps_.add(qp.qp_num(), &qp);
        used_ = true;
        keeps_regions_ = keeps_regions_ || qp.keeps_regions();
    }
    void remove(const WorkerQp& qp) noexcept { qps_.remove(qp.qp_num()); }
    /// Returns null if no queue pair has this number, which is an error of the provider.
    [[nodiscard]] WorkerQp* find(std::uint32_t qp_num) const noexcept { return qps_.find(qp_num); }

private:
    void publish_record() noexcept {
        const SrqStatusWord word{.generation = options_.handle.generation,
                                 .sges_max = static_cast<std::uint8_t>(options_.sges_max),
                                 .depth = recvs_.pool() != nullptr ? 0 : options_.depth};
        session_->publish_srq(options_.handle.index, closing_ ? 0 : word.pack());
    }

    Options options_;
    RecvQueue recvs_;
    bool closing_ = false;
    bool used_ = false;           // a queue pair has used it
    bool keeps_regions_ = false;  // one with keeps_regions() has used it
    Status leftover_status_ = Status::srq_closed;
    WorkerSession* session_ = nullptr;
    QpNumberTable qps_;
};

}  // namespace pollcore
