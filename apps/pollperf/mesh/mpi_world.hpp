// The ranks of the job, and what they say to each other, by MPI. Open MPI spins in its blocking calls. These calls
// sleep between their looks instead, because a rank that waits must not take the CPU of one that measures.
//
// Thread safety: only the thread that has made the object calls its functions (MPI_THREAD_FUNNELED). Errors:
// MeasurementError, also if a wait takes longer than it may.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace pollcore::perf {

class MpiWorld {
public:
    /// Starts MPI. Ends the program if that fails.
    MpiWorld(int& argc, char**& argv);
    /// Ends MPI.
    ~MpiWorld();
    MpiWorld(const MpiWorld&) = delete;
    MpiWorld& operator=(const MpiWorld&) = delete;

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int size() const noexcept { return size_; }
    [[nodiscard]] const std::string& host() const noexcept { return host_; }
    /// "rank 3 on node7"
    [[nodiscard]] std::string name() const;

    /// How a wait may end before what it waits for: after `limit`, or by what `look` throws. `look` is called between
    /// the looks at MPI. `what` is for the message: "waits for ...".
    struct Patience {
        std::chrono::milliseconds limit{};
        std::string what;
        std::function<void()> look{};
    };
    /// Returns when all ranks have called it.
    void barrier(const Patience& patience);
    /// The texts of all ranks, in their order. All ranks call it.
    [[nodiscard]] std::vector<std::string> all_gather(const std::string& text, const Patience& patience);
    void send(int to, const std::string& text, const Patience& patience);
    [[nodiscard]] std::string receive(int from, const Patience& patience);
    /// Waits until `done` returns true.
    void wait(const std::function<bool()>& done, const Patience& patience);

    /// Ends all ranks of the job with this exit code.
    [[noreturn]] void abort(int code) noexcept;

private:
    void wait(MPI_Request& request, const Patience& patience);

    int rank_ = 0;
    int size_ = 1;
    std::string host_;
};

}  // namespace pollcore::perf
