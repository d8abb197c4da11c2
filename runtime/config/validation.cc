#include "config/validation.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "config/schema.hpp"
#include "pollcore/limits.hpp"

namespace pollcore::config {
namespace {

std::string item(std::string_view section, std::size_t index) {
    return fmt::format("{}[{}]", section, index);
}

// Checks each value against its own rule.
class RuleChecker {
public:
    RuleChecker(const Cpus& cpus, const Origin& origin) : cpus_(cpus), origin_(origin) {}

    template <class Object>
    void table(const std::string& path, const Object& object) const {
        const Object defaults;
        each_field(object, cpus_, [&](const Key& key, auto member, const auto& rule) {
            using Rule = std::remove_cvref_t<decltype(rule)>;
            const auto value = value_of<Rule>(object.*member);
            const std::string key_path = fmt::format("{}.{}", path, key.name);
            if (!key.applies) {
                if (object.*member != defaults.*member) {
                    origin_.refuse(key_path, rule.print(value), fmt::format("this key is for {} only", key.only_for),
                                   key_list(object, false));
                }
            } else if (const Refusal why = rule.check(value)) {
                origin_.refuse(key_path, rule.print(value), *why, rule.accepted());
            }
        });
    }

    template <class Object>
    void list(std::string_view name, const std::vector<Object>& objects) const {
        for (std::size_t i = 0; i < objects.size(); ++i) {
            table(item(name, i), objects[i]);
        }
    }

private:
    const Cpus& cpus_;
    const Origin& origin_;
};

template <class Object>
void check_count(const std::vector<Object>& objects, std::string_view section, std::size_t max, const Origin& origin) {
    const std::string accepted = fmt::format("1 to {} tables [[{}]]", max, section);
    if (objects.empty()) {
        origin.refuse_absent(std::string(section), "there is none", accepted);
    }
    if (objects.size() > max) {
        origin.refuse_absent(item(section, max), fmt::format("there are {}", objects.size()), accepted);
    }
}

template <class Object>
void check_names(const std::vector<Object>& objects, std::string_view section, const Origin& origin) {
    std::map<std::string_view, std::size_t> seen;
    for (std::size_t i = 0; i < objects.size(); ++i) {
        const auto [first, is_new] = seen.emplace(objects[i].name, i);
        if (!is_new) {
            origin.refuse(item(section, i) + ".name", toml_quoted_short(objects[i].name),
                          fmt::format("{} has this name already", item(section, first->second)),
                          fmt::format("a name that no other [[{}]] has", section));
        }
    }
}

void check_cores(const Config& config, const Cpus& cpus, const Origin& origin) {
    std::map<std::uint32_t, std::size_t> seen;
    for (std::size_t i = 0; i < config.workers.size(); ++i) {
        const auto [first, is_new] = seen.emplace(config.workers[i].core, i);
        if (!is_new) {
            std::set<std::uint32_t> free = cpus.allowed;
            for (const WorkerConfig& worker : config.workers) {
                free.erase(worker.core);
            }
            origin.refuse(item("worker", i) + ".core", fmt::format("{}", config.workers[i].core),
                          fmt::format("{} has this core already, and a worker shares its core with no other",
                                      item("worker", first->second)),
                          free.empty() ? std::string("no more workers: each core that this process may use has one")
                                       : print_cpu_list(free));
        }
    }
}

void check_sockets(const Config& config, const Origin& origin) {
    if (!config.control.path.empty() && config.control.path == config.attach.path) {
        origin.refuse("control.path", toml_quoted(config.control.path.native()), "processes attach there (attach.path)",
                      "another path than attach.path");
    }
}

void check_moderation(const Config& config, const Origin& origin) {
    for (std::size_t i = 0; i < config.workers.size(); ++i) {
        const WorkerConfig& worker = config.workers[i];
        if (worker.moderation_count > 1 && worker.moderation_period.count() == 0) {
            origin.refuse(item("worker", i) + ".moderation_count", fmt::format("{}", worker.moderation_count),
                          "without a moderation_period fewer completions would wake the worker never",
                          "1, or more with a moderation_period above \"0us\"");
        }
    }
}

template <class Object>
const Object& find_by_name(const std::vector<Object>& objects, const std::string& name, std::string_view section,
                           const std::string& path, const Origin& origin) {
    const auto found = std::find_if(objects.begin(), objects.end(), [&](const Object& o) { return o.name == name; });
    if (found != objects.end()) {
        return *found;
    }
    std::string names;
    for (const Object& object : objects) {
        names += names.empty() ? "" : ", ";
        names += toml_quoted(object.name);
    }
    origin.refuse(path, toml_quoted_short(name), fmt::format("no [[{}]] has this name", section), names);
}

void check_address(const ServiceConfig& service, const DeviceConfig& device, const std::string& path,
                   const Origin& origin) {
    const std::string shown = toml_quoted_short(service.address);
    if (device.kind == DeviceConfig::Kind::soft) {
        const NameRule word;
        if (const Refusal why = word.check(service.address)) {
            origin.refuse(path, shown, fmt::format("{}, and {} is a soft device", *why, toml_quoted(device.name)),
                          word.accepted());
        }
    } else if (const Refusal why = check_socket_address(service.address)) {
        origin.refuse(path, shown, fmt::format("{}, and {} is a verbs device", *why, toml_quoted(device.name)),
                      kSocketAddressAccepted);
    }
}

void check_service(const Config& config, std::size_t index, const Origin& origin) {
    const ServiceConfig& service = config.services[index];
    const std::string path = item("service", index);
    const std::string device_path = path + ".device";
    const std::string worker_path = path + ".worker";
    const DeviceConfig& device = find_by_name(config.devices, service.device, "device", device_path, origin);
    const WorkerConfig& worker = find_by_name(config.workers, service.worker, "worker", worker_path, origin);
    check_address(service, device, path + ".address", origin);

    // For port 0 the kernel chooses a different port for each service, so several services may have this address.
    const bool any_port = device.kind == DeviceConfig::Kind::verbs && service.address.ends_with(":0");
    for (std::size_t i = 0; i < index && !any_port; ++i) {
        if (config.services[i].device == service.device && config.services[i].address == service.address) {
            origin.refuse(path + ".address", toml_quoted_short(service.address),
                          fmt::format("{} listens there already", item("service", i)),
                          fmt::format("an address that no other service on device {} has", toml_quoted(device.name)));
        }
    }
    if (service.connections_max > config.qps_max) {
        origin.refuse(path + ".connections_max", fmt::format("{}", service.connections_max),
                      "each connection takes a queue pair, and runtime.qps_max allows fewer",
                      fmt::format("an integer from 1 to {}", config.qps_max));
    }
    if (service.kind == ServiceConfig::Kind::echo && worker.wake_on == WakeOn::solicited) {
        origin.refuse(
            path + ".worker", toml_quoted_short(service.worker),
            "only solicited messages wake that worker (wake_on), and those of an echo service's peers need not be",
            "a worker with wake_on = \"all\"");
    }
    if (service.kind == ServiceConfig::Kind::echo && service.depth > worker.cq_depth) {
        origin.refuse(path + ".depth", fmt::format("{}", service.depth),
                      fmt::format("the completion queues of worker {} (cq_depth) hold fewer", toml_quoted(worker.name)),
                      fmt::format("an integer from 1 to {}", worker.cq_depth));
    }
    if (arrival_of(service.flow) != Arrival::receives) {
        origin.refuse(path + ".flow", toml_quoted(flow_control_name(service.flow)),
                      "an echo service posts receives, and with this flow control messages arrive without any",
                      "a flow control by which messages take receives, such as \"credits\"");
    }
    if (service.kind == ServiceConfig::Kind::echo && service.messages_max() > kRingSlotsMax) {
        origin.refuse(
            path + ".depth", fmt::format("{}", service.depth),
            fmt::format("times connections_max {} it is {} messages in flight, and a completion ring holds {}",
                        service.connections_max, service.messages_max(), kRingSlotsMax),
            fmt::format("an integer from 1 to {}", kRingSlotsMax / service.connections_max));
    }
    if (const std::uint64_t needed = service.memory_bytes(); needed > config.memory.size) {
        const bool echo = service.kind == ServiceConfig::Kind::echo;
        origin.refuse(
            path + (echo ? ".message_size_max" : ".size"),
            toml_quoted(print_bytes(echo ? service.message_size_max : service.size)),
            echo ? fmt::format("times depth {} times connections_max {} it is {}, and memory.size is {}", service.depth,
                               service.connections_max, print_bytes(needed), print_bytes(config.memory.size))
                 : fmt::format("memory.size is {}", print_bytes(config.memory.size)),
            fmt::format("what fits into memory.size, which can be up to \"{}\"", print_bytes(kMemorySize.max)));
    }
}

// Checks the limits that hold for all services together. Each single service may keep such a limit although the sum of
// the services exceeds it.
void check_sums(const Config& config, const Origin& origin) {
    std::uint64_t connections = 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < config.services.size(); ++i) {
        const ServiceConfig& service = config.services[i];
        const std::string path = item("service", i);
        connections += service.connections_max;
        if (connections > config.qps_max) {
            origin.refuse(
                path + ".connections_max", fmt::format("{}", service.connections_max),
                fmt::format("with the services before it that makes {} connections, and runtime.qps_max allows "
                            "{} queue pairs",
                            connections, config.qps_max),
                fmt::format("up to {} for all services together", config.qps_max));
        }
        bytes += service.memory_bytes();  // each term is at most memory.size, so the sum does not wrap
        if (bytes > config.memory.size) {
            origin.refuse(
                path + ".name", toml_quoted_short(service.name),
                fmt::format("its buffers and those of the services before it take {}, and memory.size is {}",
                            print_bytes(bytes), print_bytes(config.memory.size)),
                fmt::format("what fits into memory.size, which can be up to \"{}\"", print_bytes(kMemorySize.max)));
        }
    }
}

}  // namespace

void check(const Config& config, const Cpus& cpus, const Origin& origin) {
    each_section(config, RuleChecker(cpus, origin));
    check_count(config.devices, "device", kDevicesMax, origin);
    check_count(config.workers, "worker", kWorkersMax, origin);
    check_names(config.devices, "device", origin);
    check_names(config.workers, "worker", origin);
    check_names(config.services, "service", origin);
    check_cores(config, cpus, origin);
    check_sockets(config, origin);
    check_moderation(config, origin);
    for (std::size_t i = 0; i < config.services.size(); ++i) {
        check_service(config, i, origin);
    }
    check_sums(config, origin);
}

}  // namespace pollcore::config

namespace pollcore {

void validate(const Config& config) {
    config::check(config, config::Cpus::of_this_process(), config::Origin());
}

}  // namespace pollcore
