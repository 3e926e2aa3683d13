# fish completion for HELM's programs. They are asked for their options themselves, so that this never lags behind.
function __helm_options
    set -l words (commandline -opc)
    set -l command
    if test (path basename $words[1]) = helm-cli
        set -l commands ($words[1] --print-options 2>/dev/null | string match -rg '^([a-z]+)\t')
        for word in $words[2..]
            contains -- $word $commands; and set command $word; and break
        end
    end
    $words[1] $command --print-options 2>/dev/null | while read -d \t -l name value help
        if test "$name" = "$words[-1]"; and string match -q -- '*|*' $value
            string split '|' $value
            return
        end
        printf '%s\t%s\n' $name $help
    end
end
for program in helm-cli helmd helm-gateway helm-plan helm-profile helm-inspect helm-quantize helm-mkmodel helm-bench
    complete -c $program -a '(__helm_options)'
end
