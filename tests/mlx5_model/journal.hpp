// The send WQEs that the NIC has carried out or flushed, while watch() is on. Tests compare them with the requests that
// a program has posted.
#pragma once

#include <cstdint>
#include <deque>

#include "control.h"
#include "hca_send_queue.hpp"

namespace mlx5_model {

/// Not thread-safe: callers hold the fabric's lock.
class Journal {
public:
    void watch(bool on) {
        on_ = on;
        wqes_.clear();
    }
    void write(std::uint32_t qpn, const SendWqe& wqe) {
        if (!on_) {
            return;
        }
        mlx5_model_wqe entry{};
        entry.qpn = qpn;
        entry.index = wqe.index;
        entry.opcode = wqe.opcode;
        entry.signaled = wqe.signaled ? 1 : 0;
        entry.remote_address = wqe.remote_address;
        entry.rkey = wqe.rkey;
        entry.segments = static_cast<std::uint32_t>(wqe.segment_count);
        entry.address = wqe.segment_count > 0 ? wqe.segments[0].address : 0;
        entry.lkey = wqe.segment_count > 0 ? wqe.segments[0].lkey : 0;
        entry.length = static_cast<std::uint32_t>(wqe.length());
        wqes_.push_back(entry);
    }
    int take(mlx5_model_wqe* to, int most) {
        int taken = 0;
        for (; taken < most && !wqes_.empty(); ++taken) {
            to[taken] = wqes_.front();
            wqes_.pop_front();
        }
        return taken;
    }

private:
    bool on_ = false;
    std::deque<mlx5_model_wqe> wqes_;
};

}  // namespace mlx5_model
