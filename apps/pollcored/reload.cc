#include "reload.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "config/schema.hpp"

namespace pollcore::daemon {
namespace {

// The keys that a reload applies. Services are compared by services_missing().
constexpr std::string_view kReloadable[] = {"runtime.log_level",
                                            "attach.users",
                                            "attach.groups",
                                            "attach.own_memory",
                                            "attach.clients_max",
                                            "attach.sessions_max",
                                            "attach.queue_pairs_max",
                                            "attach.work_requests_max",
                                            "attach.registered_max",
                                            "attach.user_clients_max",
                                            "attach.user_sessions_max",
                                            "attach.user_queue_pairs_max",
                                            "attach.user_shared_receive_queues_max",
                                            "attach.user_receive_pools_max",
                                            "attach.user_listeners_max",
                                            "attach.user_objects_max",
                                            "attach.user_registered_max"};

template <class Object>
void compare(const std::string& path, const Object& running, const Object& wanted, std::vector<std::string>& differ) {
    config::each_field(wanted, config::Cpus{}, [&](const config::Key& key, auto member, const auto&) {
        const std::string name = fmt::format("{}.{}", path, key.name);
        if (running.*member != wanted.*member &&
            std::find(std::begin(kReloadable), std::end(kReloadable), name) == std::end(kReloadable)) {
            differ.push_back(name);
        }
    });
}

template <class Object>
void compare_lists(const std::string& name, const std::vector<Object>& running, const std::vector<Object>& wanted,
                   std::vector<std::string>& differ) {
    if (running.size() != wanted.size()) {
        differ.push_back(fmt::format("the number of [[{}]]", name));
    }
    for (std::size_t i = 0; i < std::min(running.size(), wanted.size()); ++i) {
        compare(fmt::format("{}[{}]", name, i), running[i], wanted[i], differ);
    }
}

}  // namespace

std::vector<std::string> needs_restart(const Config& running, const Config& wanted) {
    std::vector<std::string> differ;
    compare("runtime", running, wanted, differ);
    compare("memory", running.memory, wanted.memory, differ);
    compare("attach", running.attach, wanted.attach, differ);
    compare("statistics", running.statistics, wanted.statistics, differ);
    compare_lists("device", running.devices, wanted.devices, differ);
    compare_lists("worker", running.workers, wanted.workers, differ);
    return differ;
}

std::vector<ServiceConfig> services_missing(const Config& from, const Config& other) {
    std::vector<ServiceConfig> missing;
    std::copy_if(from.services.begin(), from.services.end(), std::back_inserter(missing),
                 [&](const ServiceConfig& service) {
                     return std::find(other.services.begin(), other.services.end(), service) == other.services.end();
                 });
    return missing;
}

}  // namespace pollcore::daemon
