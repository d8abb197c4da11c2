// What queue pairs have done, summed by device and by attached process.
//
// A queue pair's worker counts some figures modulo 2^32, to keep its cache lines few. The book reads them often, and
// adds how much they grew.
//
// Thread safety: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "worker/worker_qp.hpp"

namespace pollcore {

/// Sums since the beginning. See WorkerQp::Figures.
struct FigureTotals {
    std::uint64_t sends = 0;
    std::uint64_t send_bytes = 0;
    std::uint64_t receives = 0;
    std::uint64_t receive_bytes = 0;
    std::array<std::uint64_t, WorkerQp::kErrorStatuses> errors{};

    FigureTotals& operator+=(const FigureTotals& other) noexcept {
        sends += other.sends;
        send_bytes += other.send_bytes;
        receives += other.receives;
        receive_bytes += other.receive_bytes;
        for (std::size_t i = 0; i < errors.size(); ++i) {
            errors[i] += other.errors[i];
        }
        return *this;
    }
    [[nodiscard]] std::uint64_t all_errors() const noexcept {
        std::uint64_t sum = 0;
        for (const std::uint64_t count : errors) {
            sum += count;
        }
        return sum;
    }
};

/// The figures of one queue pair.
struct FigureAccount {
    WorkerQp::Figures read;  // when they were read last
    FigureTotals totals;
};

/// How much the figures grew. The counts modulo 2^32 must have grown by less than that.
[[nodiscard]] inline FigureTotals growth(const WorkerQp::Figures& before, const WorkerQp::Figures& now) noexcept {
    FigureTotals grown{.sends = now.sends - before.sends,
                       .send_bytes = now.send_bytes - before.send_bytes,
                       .receives = now.receives - before.receives,
                       .receive_bytes = now.receive_bytes - before.receive_bytes};
    for (std::size_t i = 0; i < grown.errors.size(); ++i) {
        grown.errors[i] = now.errors[i] - before.errors[i];
    }
    return grown;
}

class FigureBook {
public:
    /// Enters what the queue pair did since the last call. `device` is a DeviceSlot::number. `client` is the process
    /// that owns the queue pair, or 0.
    void enter(FigureAccount& account, const WorkerQp& qp, std::uint64_t device, std::uint32_t client) {
        const WorkerQp::Figures now = qp.figures();
        const FigureTotals grown = growth(account.read, now);
        account.read = now;
        account.totals += grown;
        by_device_[device] += grown;
        if (client != 0) {
            by_process_[client] += grown;
        }
    }
    [[nodiscard]] FigureTotals of_device(std::uint64_t device) const { return find(by_device_, device); }
    [[nodiscard]] FigureTotals of_process(std::uint32_t client) const { return find(by_process_, client); }
    /// Keeps no figures of devices for which `is_there` returns false.
    template <class IsThere>
    void forget_devices(IsThere&& is_there) {
        std::erase_if(by_device_, [&](const auto& entry) { return !is_there(entry.first); });
    }
    /// Keeps no figures of processes for which `is_there` returns false.
    template <class IsThere>
    void forget_processes(IsThere&& is_there) {
        std::erase_if(by_process_, [&](const auto& entry) { return !is_there(entry.first); });
    }

private:
    using Totals = std::map<std::uint64_t, FigureTotals>;
    [[nodiscard]] static FigureTotals find(const Totals& totals, std::uint64_t key) {
        const auto found = totals.find(key);
        return found != totals.end() ? found->second : FigureTotals{};
    }

    Totals by_device_;
    Totals by_process_;
};

}  // namespace pollcore
