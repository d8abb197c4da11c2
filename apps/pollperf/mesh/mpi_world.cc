#include "pollperf/mesh/mpi_world.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>

#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {
namespace {

constexpr int kTag = 1;
constexpr std::chrono::microseconds kSleepLeast{100};
constexpr std::chrono::microseconds kSleepMost{1000};

void check(int code, const char* what) {
    if (code == MPI_SUCCESS) {
        return;
    }
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    (void)::MPI_Error_string(code, text.data(), &length);
    throw MeasurementError(fmt::format("MPI, {}: {}", what, text.data()));
}

}  // namespace

MpiWorld::MpiWorld(int& argc, char**& argv) {
    int provided = 0;
    if (::MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_FUNNELED) {
        fmt::print(stderr, "pollperf-mesh: MPI does not start, or allows no threads beside it\n");
        std::exit(1);
    }
    (void)::MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    (void)::MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    (void)::MPI_Comm_size(MPI_COMM_WORLD, &size_);
    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    (void)::MPI_Get_processor_name(name.data(), &length);
    host_ = name.data();
}

MpiWorld::~MpiWorld() {
    (void)::MPI_Finalize();
}

std::string MpiWorld::name() const {
    return fmt::format("rank {} on {}", rank_, host_);
}

void MpiWorld::wait(const std::function<bool()>& done, const Patience& patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience.limit;
    auto sleep = kSleepLeast;
    while (!done()) {
        if (patience.look) {
            patience.look();
        }
        if (std::chrono::steady_clock::now() >= deadline) {
            throw MeasurementError(
                fmt::format("has waited {} ms for {}; another rank hangs", patience.limit.count(), patience.what));
        }
        std::this_thread::sleep_for(sleep);
        sleep = std::min(sleep + sleep / 4, kSleepMost);
    }
}

void MpiWorld::wait(MPI_Request& request, const Patience& patience) {
    wait(
        [&] {
            int done = 0;
            check(::MPI_Test(&request, &done, MPI_STATUS_IGNORE), patience.what.c_str());
            return done != 0;
        },
        patience);
}

void MpiWorld::barrier(const Patience& patience) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(::MPI_Ibarrier(MPI_COMM_WORLD, &request), patience.what.c_str());
    wait(request, patience);
}

std::vector<std::string> MpiWorld::all_gather(const std::string& text, const Patience& patience) {
    const auto length = static_cast<int>(text.size());
    std::vector<int> lengths(static_cast<std::size_t>(size_));
    MPI_Request request = MPI_REQUEST_NULL;
    check(::MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD, &request),
          patience.what.c_str());
    wait(request, patience);
    std::vector<int> offsets;
    int all = 0;
    for (const int one : lengths) {
        offsets.push_back(all);
        all += one;
    }
    std::string together(static_cast<std::size_t>(all), '\0');
    check(::MPI_Iallgatherv(text.data(), length, MPI_CHAR, together.data(), lengths.data(), offsets.data(), MPI_CHAR,
                            MPI_COMM_WORLD, &request),
          patience.what.c_str());
    wait(request, patience);
    std::vector<std::string> texts;
    for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
        texts.push_back(
            together.substr(static_cast<std::size_t>(offsets[rank]), static_cast<std::size_t>(lengths[rank])));
    }
    return texts;
}

void MpiWorld::send(int to, const std::string& text, const Patience& patience) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(::MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_CHAR, to, kTag, MPI_COMM_WORLD, &request),
          patience.what.c_str());
    wait(request, patience);
}

std::string MpiWorld::receive(int from, const Patience& patience) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status{};
    wait(
        [&] {
            int there = 0;
            check(::MPI_Improbe(from, kTag, MPI_COMM_WORLD, &there, &message, &status), patience.what.c_str());
            return there != 0;
        },
        patience);
    int length = 0;
    check(::MPI_Get_count(&status, MPI_CHAR, &length), patience.what.c_str());
    std::string text(static_cast<std::size_t>(length), '\0');
    MPI_Request request = MPI_REQUEST_NULL;
    check(::MPI_Imrecv(text.data(), length, MPI_CHAR, &message, &request), patience.what.c_str());
    wait(request, patience);
    return text;
}

void MpiWorld::abort(int code) noexcept {
    (void)::MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
}

}  // namespace pollcore::perf
