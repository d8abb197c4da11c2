#include "pollperf/peer/client_side.hpp"

#include <random>

#include <fmt/format.h>

#include "pollcore/version.hpp"
#include "pollperf/report/disturbances.hpp"

namespace pollcore::perf {
namespace {

// For what a server does before it answers: opening devices, registering memory, making thousands of queue pairs.
constexpr std::chrono::milliseconds kSetUpTime{30'000};

}  // namespace

Client::Client(const TestOptions& options)
    : timeout_(options.timeout + kSetUpTime), channel_(options.address, options.port, options.timeout) {
    const auto answer =
        ask({{"do", "hello"}, {"pollperf", kProtocol}, {"version", POLLCORE_VERSION}, {"host", to_json(host_facts())}});
    host_ = read_host(read_any(answer, "host"));
}

Client::Opened Client::open(PathKind path, const ConnectionPlan& plan) {
    const auto answer = ask({{"do", "open"}, {"path", path_name(path)}, {"plan", to_json(plan)}});
    Opened opened;
    opened.id = read_number<std::uint32_t>(answer, "id", 0, 1000);
    opened.path = read_path(answer);
    opened.mtu = read_number<std::uint16_t>(answer, "mtu", 256, 4096);
    opened.device = read_text(answer, "device");
    opened.ends = read_ends(read_any(answer, "ends"), std::size_t{plan.threads} * plan.connections);
    return opened;
}

void Client::connect(PathRun& path, const Opened& opened, const ConnectionPlan& plan) {
    if (!plan.rdma_cm) {
        path.connect(opened.ends);
        (void)ask({{"do", "connect"}, {"id", opened.id}, {"ends", to_json(path.own_ends())}});
        return;
    }
    // The token tells this client's connections from others that reach the server's port.
    std::random_device random;
    std::vector<std::byte> token;
    std::vector<unsigned> numbers;
    for (int i = 0; i < 16; ++i) {
        numbers.push_back(random() & 0xff);
        token.push_back(static_cast<std::byte>(numbers.back()));
    }
    const auto listening = ask({{"do", "listen"}, {"id", opened.id}, {"token", numbers}});
    std::vector<std::string> addresses;
    for (const auto& address : read_any(listening, "addresses")) {
        addresses.push_back(address.is_string() ? address.get<std::string>() : std::string());
    }
    if (addresses.size() != plan.threads) {
        throw MeasurementError("the server has not said where it listens");
    }
    path.set_remote(opened.ends);
    path.connect_all(addresses, token, timeout_);
    (void)ask({{"do", "accepted"}, {"id", opened.id}, {"ends", to_json(path.own_ends())}});
}

void Client::begin(std::uint32_t id, const Workload& workload) {
    (void)ask({{"do", "begin"}, {"id", id}, {"workload", to_json(workload)}});
}

void Client::start(std::uint32_t id, const std::optional<Until>& sends) {
    nlohmann::json request = {{"do", "start"}, {"id", id}};
    if (sends) {
        request["until"] = to_json(*sends);
    }
    (void)ask(request);
}

void Client::await_sent(std::uint32_t id) {
    // The server answers at once, so that it can also be told other things.
    while (!read_bool(ask({{"do", "await"}, {"id", id}}), "sent")) {
    }
}

Client::Sent Client::stop(std::uint32_t id) {
    const auto answer = ask({{"do", "stop"}, {"id", id}});
    const nlohmann::json& seconds = read_any(answer, "seconds");
    return {read_number<std::uint64_t>(answer, "operations", 0, ~std::uint64_t{0}),
            seconds.is_number() ? seconds.get<double>() : 0};
}

Client::Counted Client::count(std::uint32_t id, const std::vector<std::uint64_t>& posted) {
    const auto answer = ask({{"do", "count"}, {"id", id}, {"posted", posted}});
    Counted counted;
    for (const std::uint64_t one : read_counts(answer, "arrived", posted.size())) {
        counted.arrived += one;
    }
    counted.posted = read_counts(answer, "posted", posted.size());
    return counted;
}

void Client::close(std::uint32_t id) {
    (void)ask({{"do", "close"}, {"id", id}});
}

void Client::look() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) {
        channel_.look();
    }
}

nlohmann::json Client::ask(const nlohmann::json& request) {
    const std::lock_guard lock(mutex_);
    return channel_.ask(request, timeout_);
}

}  // namespace pollcore::perf
